"""A process of ours that obeys orders: both ends of the two pipes between it and its parent.

Orders and answers are JSON objects, one a line. The child's stdout and stderr are whatever it runs;
they go to a log, whose end is quoted when the process dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import offpath
from offpath.handler.errors import ExpectedError

LOG_TAIL_CHARACTERS = 2000
# The folder that holds the package `offpath`.
ROOT = Path(offpath.__file__).parents[1]

Self = TypeVar("Self", bound="ChildProcess")


class ChildProcess:
    """The parent's end: a context manager; the process is gone when the block ends.

    Args:
        module: started with `python -m`; calls `obey`.
        title: what the process is, for messages.
        environ: added to this process's own.
        log_file: takes what the process prints.
    """

    def __init__(
        self, module: str, title: str, environ: Mapping[str, str], log_file: Path
    ) -> None:
        self._module, self._title = module, title
        self._environ, self._log_file = environ, log_file

    def __enter__(self: Self) -> Self:
        read_orders, write_orders = os.pipe()
        read_answers, write_answers = os.pipe()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with open(self._log_file, "wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", self._module),
                    *(str(read_orders), str(write_answers)),
                ],
                env={**os.environ, "PYTHONPATH": path, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(read_orders, write_answers),
                # Ctrl-C is for the parent, which then ends this process.
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

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(
        self, do: str, *, limit_s: float | None = None, **order: Any
    ) -> dict[str, Any]:
        """Gives an order and waits for its answer.

        Args:
            limit_s: the process is killed when it has not answered by then; None waits for ever.

        Raises:
            ExpectedError: what it runs raised, or the process died.
        """
        timer = threading.Timer(limit_s or 0, self._process.kill)
        if limit_s is not None:
            timer.start()
        try:
            self._orders.write(json.dumps({"do": do, **order}) + "\n")
            self._orders.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            late = f" ({do} may take {limit_s:g} s)" if limit_s is not None else ""
            raise ExpectedError(
                f"{self._title}: its process ended with {code}{late};"
                f" the last it printed:\n{self._read_log()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            trace = answer["traceback"][-LOG_TAIL_CHARACTERS:].rstrip()
            raise ExpectedError(
                f"{self._title}: {answer['error']}" + (f"\n{trace}" if trace else "")
            )
        return answer

    def _read_log(self) -> str:
        text = self._log_file.read_text(encoding="utf-8", errors="replace")
        return text[-LOG_TAIL_CHARACTERS:].rstrip()


class Obedient(Protocol):
    """What a child process does: a method for each order, and what it says of an error."""

    def explain(self, error: Exception) -> dict[str, Any]:
        """`error` and `traceback` for what an order raised."""


def obey(child: Obedient) -> None:
    """The child's end: carries out orders until there are none, then ends the process.

    The command line names the file descriptors to read and to write.
    """
    answers = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    for order in read_orders(int(sys.argv[1])):
        try:
            answer = getattr(child, order["do"])(order)
        except Exception as error:
            answer = child.explain(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Background threads of what ran here (log shipping, an engine's pool) would hold the exit up.
    os._exit(0)


def read_orders(descriptor: int) -> Iterator[dict[str, Any]]:
    """Orders until the parent closes its end, or is gone."""
    with os.fdopen(descriptor, "r", encoding="utf-8") as orders:
        for line in orders:
            yield json.loads(line)
