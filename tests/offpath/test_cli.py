from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click
import pytest

from offpath import cli
from offpath.errors import ExpectedError
from tests.offpath.conftest import Run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["serve.sh", "test.sh", "lint.sh", "audit.sh"])
def test_help_of_a_script_installs_nothing(script: str, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    done = subprocess.run(
        [ROOT / "scripts" / script, "--help"],
        env={**os.environ, "OFFPATH_VENV": str(venv), "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 50 and "#" not in done.stdout
    assert not venv.exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        pytest.param(ExpectedError("no such thing"), 1, "offpath: no such thing\n", id="1"),
        pytest.param(click.UsageError("wrong"), 2, "wrong", id="2"),
        pytest.param(ZeroDivisionError("odd"), 3, "this is a bug", id="3"),
        pytest.param(KeyboardInterrupt(), 130, "", id="130"),
        pytest.param(click.exceptions.Abort(), 130, "", id="130-by-click"),
    ],
)
def test_kind_of_error_decides_the_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli.main, "main", fail)
    done = run()
    assert done.code == code
    assert said in done.err


def test_ctrl_c_while_a_text_is_executed_exits_with_130_too(tmp_path: Path) -> None:
    program = """
from offpath import cli
cli.main.main = lambda **_: exec("raise KeyboardInterrupt")
cli.run()
"""
    (tmp_path / "interrupted.py").write_text(program)
    # As `python -m offpath`: a script of its own would not end by the signal.
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("given/it/below", 2, id="below-it"),
        pytest.param("given", 2, id="above-it"),
        pytest.param("another/folder", 3, id="none-that-was-passed"),
    ],
)
def test_what_cannot_be_a_path_is_a_wrong_option(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    def fail(**_: object) -> NoReturn:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", name)

    monkeypatch.setattr(cli.main, "main", fail)
    done = run("any", "--output=given/it")
    assert done.code == code
    assert ("Traceback" in done.err) == (code == 3)


def test_help_is_answered_without_importing_torch() -> None:
    program = """
import sys
from offpath.cli import run
for arguments in (["--help"], ["archive", "-h"], ["predict", "-h"]):
    try:
        run(arguments)
    except SystemExit as done:
        assert (done.code, "torch" in sys.modules) == (0, False), arguments
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
