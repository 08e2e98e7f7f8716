from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click
import pytest

from offpath import cli
from offpath.handler.errors import ExpectedError

ROOT = Path(__file__).parents[2]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and what went to stderr."""
    with pytest.raises(SystemExit) as caught:
        cli.run(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        pytest.param(
            ExpectedError("no such thing"), 1, "offpath: no such thing\n", id="1"
        ),
        pytest.param(click.UsageError("wrong"), 2, "wrong", id="2"),
        pytest.param(ZeroDivisionError("odd"), 3, "this is a bug", id="3"),
        pytest.param(KeyboardInterrupt(), 130, "", id="130"),
        pytest.param(click.exceptions.Abort(), 130, "", id="130-by-click"),
    ],
)
def test_kind_of_error_decides_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def fail(**_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli.main, "main", fail)
    found, text = run(capsys)
    assert found == code
    assert said in text
    assert ("Traceback" in text) == (code == 3)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["no-such-command"], id="unknown-command"),
        pytest.param(["--no-such-option"], id="unknown-option"),
        pytest.param(["predict"], id="missing-argument"),
        pytest.param(["predict", "a.jpg", "--clients", "0"], id="out-of-range"),
        pytest.param(["predict", "a.jpg", "--clients", "x"], id="no-number"),
        pytest.param(["archive", "--batch-size", "x"], id="archive-no-number"),
        pytest.param(["archive", "surplus"], id="surplus-argument"),
    ],
)
def test_wrong_usage_exits_with_2_and_no_traceback(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, text = run(capsys, *arguments)
    assert code == 2
    assert text.strip()
    assert "Traceback" not in text


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run([name, "--help"])
    assert caught.value.code == 0
    assert "Usage: offpath " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--help"], ["archive", "-h"], ["predict", "-h"]]
)
def test_help_is_answered_without_importing_torch(arguments: list[str]) -> None:
    program = f"""
import sys
from offpath.cli import run
try:
    run({arguments!r})
except SystemExit as done:
    sys.exit("torch was imported" if "torch" in sys.modules else done.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_module_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offpath", "no-such-command"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
