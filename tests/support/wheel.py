"""The checkout's wheel in a fresh environment, as users have it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
BUILD = "from setuptools import build_meta; build_meta.build_wheel({!r})"


def run(*command: object, cwd: Path) -> str:
    """Runs a command with an empty environment, so that nothing leads back to the clone."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel in a copy, because setuptools leaves scratch files beside setup.cfg."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignore)
    run(sys.executable, "-c", BUILD.format(str(folder)), cwd=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """Returns the interpreter of a fresh environment with the wheel and this one's dependencies."""
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=wheel.parent)
    python = environment / "bin" / "python"
    # .pth files in those folders are ignored, and with them an installed `offpath`.
    (site,) = environment.glob("lib/python*/site-packages")
    folders = [entry for entry in sys.path if entry.endswith("-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders))
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=wheel.parent)
    return python
