"""A fresh environment with the built wheel, and a user's folder, both apart from the clone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.serving.process.processes import end_family
from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from tests.journeys.models import LABELS, NET, make_model
from tests.support.images import jpeg

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
BUILD = "from setuptools import build_meta; build_meta.build_wheel({!r})"
# Runs several commands in one process; prints the standard error of each as JSON.
SEVERAL = """
import contextlib, io, json, sys
from offpath import cli
said = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            cli.run(command)
        except SystemExit as end:
            assert not end.code, stderr.getvalue()
    said.append(stderr.getvalue())
print(json.dumps(said))
"""


class Shell:
    """Runs the environment's commands in one folder."""

    def __init__(self, python: Path, folder: Path, tmp_dir: Path) -> None:
        self.python, self.folder = python, folder
        keep = {
            name: os.environ[name]
            for name in ("PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS")
            if name in os.environ
        }
        # The workers of a plain TorchServe listen in $TMPDIR, under names that all servers share.
        self.env = {
            **keep,
            "TMPDIR": str(tmp_dir),
            "HOME": str(folder),
            "COLUMNS": "80",
            # Other tests run on the other core.
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: object, code: int = 0) -> str:
        """Runs `offpath COMMAND` and returns its standard output."""
        return self.execute(self.python.with_name("offpath"), *command, code=code)

    def run_several(self, commands: list[list[str]]) -> list[str]:
        """Runs `offpath` for each command in one process, which imports torch once.

        Returns:
            The standard error of each command.
        """
        out = self.execute(self.python, "-c", SEVERAL, json.dumps(commands))
        said: list[str] = json.loads(out.splitlines()[-1])
        return said

    def run_json(self, *command: object, code: int = 0) -> Any:
        """Runs `offpath COMMAND --json` and returns the parsed output."""
        return json.loads(self.run(*command, "--json", code=code))

    def execute(self, *command: object, code: int = 0) -> str:
        """Runs any command and returns its standard output."""
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serve(self, *options: object) -> Iterator[dict[str, Any]]:
        """Runs `offpath serve` until the block ends; yields what it prints when it is READY."""
        ports = ("--port", 0, "--metrics-port", 0, "--json")
        command = [self.python.with_name("offpath"), "serve", *options, *ports]
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "it ended before it was READY"
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
            end_family(process.pid, timeout_s=15)


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
