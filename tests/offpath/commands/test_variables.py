"""The one table of environment variables, and who hears of a misspelt one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from offpath.commands.variables import find_unread_variables
from tests.offpath.conftest import Run

ROOT = Path(__file__).parents[3]


def test_every_variable_of_the_repository_is_in_the_table() -> None:
    grep = ["git", "grep", "-hoE", r"\bOFFPATH_[A-Z0-9_]+", "--", ".", ":!tests/offpath/commands"]
    found = subprocess.run(grep, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    # A name that ends with a line stands for several, as in OFFPATH_LOG_*.
    names = {name for name in re.findall(r"\w+", found) if not name.endswith("_")}
    assert len(names) > 40
    assert [*find_unread_variables(dict.fromkeys(names, ""))] == []


def test_other_commands_warn_of_a_misspelt_variable(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OFFPATH_SPOL_DIR", str(tmp_path))
    said = run("check", tmp_path / "none.mar").err.splitlines()[0]
    assert said == (
        "offpath: warning: unknown variable OFFPATH_SPOL_DIR; did you mean OFFPATH_SPOOL_DIR"
    )
