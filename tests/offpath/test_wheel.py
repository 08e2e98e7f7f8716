"""The wheel as somebody installs it: one top-level package, with all that it reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("handler", "archive", "serving", "profiling")
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
BUILD = "from setuptools import build_meta; build_meta.build_wheel({!r})"
USE = """
from pathlib import Path
import offpath
from offpath.archive.build import HANDLER_DIR
from offpath.archive.model_config import load_preset
from offpath.client import Client
from offpath.serving.settings import build_properties, find_config, Ports, ServerSettings

load_preset("cpu")
settings = ServerSettings(Path("store"), ("a.mar",))
build_properties(settings, Ports(1, 2, 3, 4, 5))
print(offpath.__file__, find_config(), HANDLER_DIR / "classifier.py", sep="\\n")
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy: setuptools leaves its scratch files beside setup.cfg."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignore)
    run(sys.executable, "-c", BUILD.format(str(folder)), cwd=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """Python of a fresh environment with the wheel; its dependencies are this one's."""
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=wheel.parent)
    python = environment / "bin" / "python"
    # The .pth files in those folders are not read, and so no installed `offpath`.
    (site,) = environment.glob("lib/python*/site-packages")
    folders = [entry for entry in sys.path if entry.endswith("-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders))
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=wheel.parent)
    return python


def test_wheel_holds_one_package_and_every_file_of_its_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("torchserve_offpath-")} == {
        "offpath"
    }
    files = {
        f"offpath/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "results" not in path.parts
    }
    assert len(files) > 100
    assert files - names == set()


def test_installed_wheel_works_anywhere(python: Path, tmp_path: Path) -> None:
    package, config, classifier = run(python, "-c", USE, cwd=tmp_path).splitlines()
    environment = str(python.parents[1])
    assert all(p.startswith(environment) for p in (package, config, classifier))
    assert Path(classifier).is_file()


def test_installed_command_answers(python: Path, tmp_path: Path) -> None:
    command = python.with_name("offpath")
    assert "serve" in run(command, "--help", cwd=tmp_path)
    assert run(command, "--version", cwd=tmp_path).startswith("offpath, version")
