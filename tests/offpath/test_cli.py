from __future__ import annotations

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


def test_help_of_every_command_is_answered_without_importing_torch() -> None:
    program = """
import sys
from offpath.cli import main, run
from scripts.command_list import list_commands
for path, _, _ in [("offpath", main, None), *list_commands(main, "offpath")]:
    try:
        run([*path.split()[1:], "-h"])
    except SystemExit as done:
        assert (done.code, "torch" in sys.modules) == (0, False), path
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
