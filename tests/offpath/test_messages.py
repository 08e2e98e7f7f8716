"""Messages after a slip name the slip and its cure."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.handler.prediction_log.conftest import mount_tmpfs  # noqa: F401
from tests.offpath.commands.test_logs import record, write_log
from tests.offpath.conftest import Run

ROOT = Path(__file__).parents[2]
NET = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
"""
ARCHIVE = ("archive", "--model", "near-free", "--output", "store")
TRAINED = ("archive", "--model", "net.py", "--weights")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("mine.yaml").write_text("handler: {topk: 5}")
    for is_zip in (True, False):
        saved = io.BytesIO()
        weights = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
        torch.save(weights, saved, _use_new_zipfile_serialization=is_zip)
        half = saved.getvalue()[: len(saved.getvalue()) * 2 // 3]
        Path(f"half-{is_zip}.pt").write_bytes(half)
    write_log(Path("log").absolute(), [record("a")])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((*TRAINED, "half-True.pt"), 2, "damaged, incomplete or no checkpoint"),
        ((*TRAINED, "half-False.pt"), 2, "damaged, incomplete or no checkpoint"),
        ((*ARCHIVE, "--preset", "mine.yaml"), 2, "--preset 'mine.yaml': unknown key"),
        ((*ARCHIVE, "--set", "topk=5"), 2, "in handler; did you mean top_k\n"),
        (("archvie",), 2, "Did you mean 'archive'?"),
        (("archive", "--modle", "x"), 2, "Did you mean '--model'?"),
        (
            ("logs", "report", "--a", "file://{}/log", "--b", "version=9"),
            *(1, "no records in --b, so nothing is compared"),
        ),
    ],
)
def test_a_slip_is_named_with_its_cure(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = run(*(one.format(tmp_path) for one in arguments))
    assert done.code == code and says in done.err
    assert len(done.err) < 400


@pytest.mark.parametrize("full", ["temporary", "output"])
def test_a_full_disk_is_named_without_a_temporary_file(
    mount_tmpfs: Callable[..., Path], full: str  # noqa: F811
) -> None:
    disk = mount_tmpfs("size=200k")
    command = [sys.executable, "-m", "offpath", *ARCHIVE]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if full == "temporary":
        env["TMPDIR"] = str(disk)
    else:
        command[-1] = str(disk)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2) and str(disk) in last and "No space left" in last
    assert "offpath-archive-" not in last and "Traceback" not in done.stderr


def test_a_server_that_is_not_set_up_is_refused_before_photographs_are_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    done = run("bench", "compare", "--servers", "triton")
    assert done.code == 1 and "none of the servers can run here" in done.err
    assert "photograph" not in done.out + done.err
