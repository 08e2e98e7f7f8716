"""Commands of a fresh environment, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpath.serving.process.processes import end_session


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
            # The other core has tests of its own.
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *command: object, code: int = 0) -> str:
        """`offpath COMMAND`; its standard output."""
        return self.execute(self.python.with_name("offpath"), *command, code=code)

    def run_json(self, *command: object, code: int = 0) -> Any:
        """The same with `--json`."""
        return json.loads(self.run(*command, "--json", code=code))

    def execute(self, *command: object, code: int = 0) -> str:
        """Any command; what it said on standard error is kept in `said`."""
        done = subprocess.run(
            list(map(str, command)), **self._where(), capture_output=True, timeout=300
        )
        self.said = done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

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
