"""A fresh environment with the built wheel, and commands in it as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.serving.launch import make_short_tmp_dir, remove_folder
from offpath.serving.processes import end_session
from tests.offpath import test_wheel
from tests.support.pictures import jpeg

NET = """
import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(128, 6))
"""
LABELS = ["bent", "crack", "dent", "fine", "rust", "scratch"]

# Fixtures.
wheel, python = test_wheel.wheel, test_wheel.python


class Shell:
    """Runs the environment's commands in one folder."""

    def __init__(self, python: Path, folder: Path, tmp_dir: Path) -> None:
        self.python, self.folder = python, folder
        keep = {
            name: os.environ[name]
            for name in ("PATH", "JAVA_HOME")
            if name in os.environ
        }
        # A plain TorchServe's workers listen in $TMPDIR, on names that every other one takes too.
        self.env = {
            **keep,
            "TMPDIR": str(tmp_dir),
            "HOME": str(folder),
            "COLUMNS": "80",
        }

    def run(self, *command: object, code: int = 0) -> str:
        """`offpath COMMAND`; its standard output."""
        done = subprocess.run(
            [self.python.with_name("offpath"), *map(str, command)],
            **self._where(),
            capture_output=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def run_json(self, *command: object, code: int = 0) -> Any:
        """The same with `--json`."""
        return json.loads(self.run(*command, "--json", code=code))

    @contextmanager
    def serve(self, *options: object) -> Iterator[dict[str, Any]]:
        """`offpath serve` until the block ends; what it says when it is READY."""
        ports = ("--port", 0, "--metrics-port", 0, "--json")
        command = [self.python.with_name("offpath"), "serve", *options, *ports]
        with self.started(*command) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "it ended before it was READY"
            yield json.loads(line)

    @contextmanager
    def started(self, *command: object) -> Iterator[subprocess.Popen[str]]:
        """A command that runs until the block ends."""
        process = subprocess.Popen(
            list(map(str, command)),
            **self._where(),
            stdout=subprocess.PIPE,
            # `torchserve --foreground` leaves its Java behind when it is ended.
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            end_session(process.pid, timeout_s=15)
            if process.stdout is not None:
                process.stdout.close()

    def _where(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self.env, "text": True}


@pytest.fixture
def shell(python: Path, tmp_path: Path) -> Iterator[Shell]:
    """In a folder with a user's files: net.py, net.pt, classes.txt, part.jpg, handler.py."""
    (tmp_path / "net.py").write_text(NET)
    scope: dict[str, Any] = {"__name__": "net"}
    exec(NET, scope)
    torch.manual_seed(0)
    torch.save(scope["Net"]().state_dict(), tmp_path / "net.pt")
    (tmp_path / "classes.txt").write_text("\n".join(LABELS))
    (tmp_path / "part.jpg").write_bytes(jpeg(size=(640, 480)))
    # Every TorchServe user has one.
    (tmp_path / "handler.py").write_text("raise ImportError('not this one')")
    tmp_dir = make_short_tmp_dir()
    yield Shell(python, tmp_path, tmp_dir)
    remove_folder(tmp_dir)
