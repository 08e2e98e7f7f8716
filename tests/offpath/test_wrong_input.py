"""At least ten wrong inputs a command: a line that says what is wrong, and the documented code."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from offpath.cli import main
from offpath.profiling.load import workload
from tests.offpath.conftest import Done, Run
from tests.offpath.reference import list_commands
from tests.offpath.wrong_input import BY_HAND, NEEDED, derive, write_files
from tests.support.no_processes import Started, forbid_processes

COMMANDS = {
    path.removeprefix("offpath "): command
    for path, command, _ in list_commands(main, "offpath")
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wrong")
    write_files(path)
    return path


@pytest.fixture(scope="module")
def busy() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    forbid_processes(monkeypatch)
    monkeypatch.setattr(workload, "generate", refuse_to_generate)


def refuse_to_generate(*_: object) -> None:
    """Photographs take a minute: whatever is wrong is said before."""
    raise Started("to make photographs")


def list_inputs(path: str, command: click.Command) -> Iterator[tuple[list[str], int]]:
    """Arguments and the documented exit code."""
    needed = shlex.split(NEEDED.get(path, ""))
    for wrong in derive(command):
        yield [*needed, *wrong], 2
    for text in BY_HAND[path].split("|"):
        words = text.strip()
        yield shlex.split(words.removesuffix("!")), 1 if words.endswith("!") else 2


def find_fault(done: Done, code: int) -> str | None:
    """What is not as it should be."""
    if done.code != code:
        return f"code {done.code}"
    lines = done.err.splitlines()
    if "Traceback" in done.err or "bug" in done.err:
        return "a traceback"
    # `check` puts what is wrong into its table.
    if not lines and code == 1 and "wrong" in done.out:
        return None
    if not 1 <= len(lines) <= 3 or not any(
        one.startswith("offpath: ") for one in lines
    ):
        return f"{len(lines)} lines"
    return None


@pytest.mark.parametrize("path", COMMANDS)
def test_wrong_input_is_said_in_a_line(
    run: Run,
    path: str,
    folder: Path,
    busy: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = list(list_inputs(path, COMMANDS[path]))
    assert len({tuple(words) for words, _ in inputs}) >= 10
    faults = []
    for words, code in inputs:
        words = [word.format(folder=folder, busy=busy) for word in words]
        try:
            done = run(*path.split(), *words)
        except Started as started:
            capsys.readouterr()
            faults.append(f"{shlex.join(words)}: it started {started}")
            continue
        if (fault := find_fault(done, code)) is not None:
            faults.append(f"{shlex.join(words)}: {fault}: {done.err[-600:]}")
    assert not faults, "\n".join(faults)
