"""Wrong input of every command: one line that says what is wrong, and the documented exit code."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.profiling.load import workload
from tests.guarantees import guarantee
from tests.offpath.conftest import Run
from tests.offpath.no_processes import Started, forbid_processes
from tests.offpath.wrong_input import Case, list_cases, write_files

CASES = {f"{case.command} {case.arguments}": case for case in list_cases()}


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
    forbid_processes(monkeypatch)
    monkeypatch.setattr(workload, "generate", refuse_to_generate)


def refuse_to_generate(*_: object) -> None:
    """Fails the test: photographs take a minute, so errors must come before them."""
    raise Started("to make photographs")


def list_files(folder: Path) -> dict[Path, int]:
    """Lists every file with its time of modification."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path: path.stat().st_mtime_ns for path in files}


@guarantee("Hostile archives and YAML")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong_input_is_refused_in_one_line_and_changes_no_file(
    run: Run, case: Case, folder: Path, busy: int
) -> None:
    before = list_files(folder)
    arguments = shlex.split(case.arguments.format(folder=folder, busy=busy))
    done = run(*case.command.split(), *arguments)
    lines = done.err.splitlines()
    assert done.code == case.code, done.err
    assert "Traceback" not in done.err and "bug" not in done.err
    # Nobody plans minutes for a command that then refuses.
    assert "takes about" not in done.err
    # `offpath check` puts what is wrong into its table.
    in_table = not lines and case.code == 1 and "wrong" in done.out
    assert in_table or 1 <= len(lines) <= 3
    assert in_table or any(line.startswith("offpath: ") for line in lines)
    assert case.says in done.err + done.out
    assert list_files(folder) == before
