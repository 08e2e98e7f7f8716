"""The command line as a user calls it, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from offpath import cli


class Done(NamedTuple):
    """The exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


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
