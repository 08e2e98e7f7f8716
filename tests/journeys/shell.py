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

from offpath.serving.process.processes import end_family

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
