"""A fresh environment with the built wheel, and a user's folder, both apart from the clone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from tests.journeys.models import LABELS, NET, make_model
from tests.journeys.shell import Shell
from tests.support.images import jpeg

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
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=wheel.parent)
    return python


@pytest.fixture(scope="module")
def shell(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a folder with a user's model, weights, labels, photographs and handler.py."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "net.py").write_text(NET)
    torch.save(make_model().state_dict(), folder / "net.pt")
    (folder / "classes.txt").write_text("\n".join(LABELS))
    (folder / "part.jpg").write_bytes(jpeg(size=(640, 480)))
    (folder / "photographs").mkdir()
    (folder / "photographs" / "one.jpg").write_bytes(jpeg("astronaut", (320, 240)))
    # Every TorchServe user has a handler.py.
    (folder / "handler.py").write_text("raise ImportError('not this one')")
    tmp_dir = make_short_tmp_dir()
    yield Shell(python, folder, tmp_dir)
    remove_folder(tmp_dir)
