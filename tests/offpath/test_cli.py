from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
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


# Stands for Python and for offpath in an environment: says a part of what pip says, or its words.
STANDIN = """#!/bin/sh
case "$*" in
*"pip install"*)
  echo "Collecting torch"
  echo "  Downloading torch-2.14.0-cp311-none-any.whl (803.2 MB)"
  echo "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)"
  echo "Installing collected packages: six, torch"
  exit ${PIP_STATUS:-0} ;;
*serve*) echo "$@" ;;
esac
"""


@pytest.fixture
def serve_sh(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs scripts/serve.sh in an environment of stand-ins."""
    for name in ("python", "offpath"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STANDIN)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "scripts" / "serve.sh", *options],
            env={**os.environ, "OFFPATH_VENV": str(tmp_path), **env},
            capture_output=True,
            text=True,
        )

    return run


def test_an_installation_without_a_terminal_says_what_takes_long(serve_sh) -> None:
    done = serve_sh("--once")
    assert done.returncode == 0
    assert "Downloading torch" in done.stderr and "Installing" in done.stderr
    assert "Collecting" not in done.stderr and "six" not in done.stderr
    assert "Downloading" not in serve_sh("--once").stderr  # it is installed


@pytest.mark.parametrize(
    ("options", "port"),
    [
        pytest.param((), None, id="as-by-default"),
        pytest.param(("--port", "9000"), "9002", id="two-above"),
        pytest.param(("--once", "--port=9000"), "9002", id="with-a-sign"),
        pytest.param(("--port", "0"), "0", id="a-free-one"),
        pytest.param(("--port", "9000", "--metrics-port", "7"), "7", id="its-own"),
        pytest.param(("--port",), None, id="without-a-number"),
    ],
)
def test_the_metrics_port_follows_the_port(serve_sh, options: tuple, port: str | None) -> None:
    words = serve_sh(*options).stdout.split()
    given = [words[idx + 1] for idx, word in enumerate(words) if word == "--metrics-port"]
    assert (given or [None])[-1] == port  # the last one wins


def test_a_failing_installation_fails_without_a_terminal_too(serve_sh) -> None:
    assert serve_sh("--once", PIP_STATUS="1").returncode == 1


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
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: str,
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


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert "Usage: offpath " + name in done.out


@pytest.mark.parametrize("arguments", [["--help"], ["archive", "-h"], ["predict", "-h"]])
def test_help_is_answered_without_importing_torch(arguments: list[str]) -> None:
    program = f"""
import sys
from offpath.cli import run
try:
    run({arguments!r})
except SystemExit as done:
    sys.exit("torch was imported" if "torch" in sys.modules else done.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("argument", ["no-such-command", "--no-such-option"])
def test_module_can_be_run_and_names_what_it_does_not_know(argument: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offpath", argument],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert argument in done.stderr
