"""`offpath bench setup`: what it refuses and says; test_environments.py has the installing."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from offpath.commands.bench_setup import setup
from offpath.errors import ExpectedError
from offpath.profiling.servers.environments import Environment


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(setup, arguments)


def test_failed_setup_is_said_at_the_end_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ExpectedError("pip failed")

    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Environment, "ensure", fail)

    result = invoke("triton", "offpath")

    assert "offpath: nothing to set up" in result.output
    assert isinstance(result.exception, ExpectedError)
    assert "not set up: triton" in str(result.exception)
    assert "triton: pip failed" in result.output


def test_list_says_what_is_missing_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    output = invoke().output

    assert "not set up here: offpath bench setup triton" in output
    assert "ready" in output
