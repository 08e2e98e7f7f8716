"""The command line as a user calls it, in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from offpath import cli


class Done(NamedTuple):
    """The exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
# As in "- `check` (a list): `area`, ...".
POINT = re.compile(r"^- (`.+(?:\n  .+)*)$", re.MULTILINE)


def read_json_keys() -> dict[str, list[str]]:
    """Returns the keys of each command's `--json` that docs/reference.md names."""
    section = REFERENCE.read_text("utf-8").partition("\n## Commands\n")[2]
    points = [point.partition(": ") for point in POINT.findall(section)]
    return {
        command: re.findall(r"`(\w+)`", keys)
        for commands, _, keys in points
        for command in re.findall(r"`([a-z ]+)`", commands)
    }


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("predict", "a.jpg", ...)` on a wide terminal; only a bug may show a traceback."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as caught:
            cli.run(list(map(str, arguments)))
        assert isinstance(caught.value.code, int)
        done = Done(caught.value.code, *capsys.readouterr())
        assert ("Traceback" in done.err) == (done.code == 3)
        return done

    return call
