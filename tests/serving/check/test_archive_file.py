from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpath.handler.process import host_limits
from offpath.serving.check.files import check_archive
from offpath.serving.check.host import check_host
from offpath.serving.finding import State
from tests.support.echo_archive import MODEL_CONFIG, MakeMar


def states(path: Path) -> dict[str, State]:
    return {one.subject: one.state for one in check_archive(path)}


def test_our_archive_is_ok(model_store: Path) -> None:
    assert set(states(model_store / "near-free.mar").values()) == {State.OK}


@pytest.mark.parametrize(
    ("config", "subject", "state"),
    [
        (None, "batch settings", State.LOST),
        (MODEL_CONFIG, "handler", State.LOST),
        ({**MODEL_CONFIG, "maxBatchDelay": 0}, "maxBatchDelay", State.WRONG),
        ({**MODEL_CONFIG, "batchsize": 8}, "batchsize", State.WRONG),
        ({**MODEL_CONFIG, "maxWorkers": 1000}, "workers", State.LOST),
        pytest.param(
            {**MODEL_CONFIG, "deviceType": "gpu"},
            "device",
            State.WRONG,
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU"),
        ),
    ],
)
def test_settings_that_do_not_work_here_are_found(
    make_mar: MakeMar, config: dict | None, subject: str, state: State
) -> None:
    assert states(make_mar(config=config))[subject] == state


def test_other_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"none")
    assert states(tmp_path / "a.mar") == {"archive": State.WRONG}


def test_containers_cpu_limit_counts_as_its_cores(
    make_mar: MakeMar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(host_limits, "CPU_LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    mar = make_mar(config={**MODEL_CONFIG, "maxWorkers": 4})
    assert states(mar)["workers"] == State.LOST
    cores = next(one for one in check_host() if one.subject == "cores")
    assert (cores.state, cores.found) == (State.LOST, "64, of which this container may use 2")


@pytest.mark.parametrize(
    ("hard", "cure"), [(256, "raise the hard limit: LimitNOFILE="), (4096, "ulimit -n 4096")]
)
def test_the_cure_for_few_open_files_is_one_that_helps(
    monkeypatch: pytest.MonkeyPatch, hard: int, cure: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, hard))
    found = next(one for one in check_host() if one.subject == "open files")
    assert found.state is State.LOST and found.cure.startswith(cure)
