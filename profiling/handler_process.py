"""The profiler's end of a handler's process: starts it, gives it orders, ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError

LOG_TAIL_CHARACTERS = 2000
ROOT = Path(__file__).resolve().parents[1]


class HandlerProcess:
    """A context manager; the process is gone when the block ends, however it ends.

    Args:
        name: of the handler, for messages.
        environ: added to this process's own.
        log_file: takes what the handler prints.
    """

    def __init__(self, name: str, environ: Mapping[str, str], log_file: Path) -> None:
        self._name, self._environ, self._log_file = name, environ, log_file

    def __enter__(self) -> HandlerProcess:
        read_orders, write_orders = os.pipe()
        read_answers, write_answers = os.pipe()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with open(self._log_file, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "profiling.profile_child"),
                    *(str(read_orders), str(write_answers)),
                ],
                env={**os.environ, "PYTHONPATH": path, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(read_orders, write_answers),
                # Ctrl-C is for the profiler, which then ends this process.
                start_new_session=True,
            )
        os.close(read_orders)
        os.close(write_answers)
        self._orders = os.fdopen(write_orders, "w", encoding="utf-8")
        self._answers = os.fdopen(read_answers, "r", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        try:
            self._orders.close()
        except BrokenPipeError:
            # An order that was never read.
            return

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Gives an order and waits for its answer.

        Raises:
            ExpectedError: the handler raised, or its process died.
        """
        try:
            self._orders.write(json.dumps({"do": do, **order}) + "\n")
            self._orders.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise ExpectedError(
                f"handler {self._name!r}: its process ended with {code};"
                f" the last it printed:\n{self._read_log()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            trace = answer["traceback"][-LOG_TAIL_CHARACTERS:].rstrip()
            raise ExpectedError(
                f"handler {self._name!r}: {answer['error']}"
                + (f"\n{trace}" if trace else "")
            )
        return answer

    def _read_log(self) -> str:
        text = self._log_file.read_text(encoding="utf-8", errors="replace")
        return text[-LOG_TAIL_CHARACTERS:].rstrip()
