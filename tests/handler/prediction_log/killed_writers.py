"""Processes that append records until they are killed, and the ledger of these records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.bucket import read_spool

ROOT = Path(__file__).parents[3]
WRITER = Path(__file__).with_name("spool_writer.py")


class Writer:
    """A process that appends records and prints their ids.

    Attributes:
        answered: The ids whose append had returned, as far as they were read.
    """

    def __init__(self, mapping: dict[str, Any], options: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WRITER), json.dumps(mapping), json.dumps(options)],
            stdout=subprocess.PIPE,
            # Unbuffered, because communicate() would lose what readline() has read ahead.
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.answered: list[str] = []

    def wait_until_written(self, records: int = 1) -> None:
        """Waits for this number of records in all."""
        while len(self.answered) < records:
            line = self._process.stdout.readline()  # type: ignore[union-attr]
            assert line, "the writer has ended"
            self.answered.append(line.decode().strip())

    def wait(self) -> None:
        """Waits for the end of the process, which leaves its forked child alone."""
        self._process.wait()

    def kill(self) -> None:
        """Kills the process with its child, and reads what it had answered."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._process.stdout.closed:  # type: ignore[union-attr]
            output, _ = self._process.communicate()
            # The last line may be torn.
            self.answered += output.decode().rpartition("\n")[0].split()


@contextmanager
def run_writers(
    settings: dict[str, Any], count: Callable[[], Counter[str]]
) -> Iterator[Callable[..., Writer]]:
    """Yields `start(options, **settings)`, which starts a writer with settings of the log.

    At the end, each answered record must be in the sink once or wait in the spool.

    Args:
        count: Counts the event ids in the sink.
    """
    writers: list[Writer] = []

    def start(options: dict[str, Any] | None = None, **more: Any) -> Writer:
        writers.append(Writer({**settings, **more}, options or {}))
        return writers[-1]

    try:
        yield start
    finally:
        for writer in writers:
            writer.kill()
    kept, found = read_spool(Path(settings["spool_dir"])), count()
    answered = [event_id for writer in writers for event_id in writer.answered]
    lost = [one for one in answered if one not in kept and one not in found]
    double = [event_id for event_id, times in found.items() if times > 1]
    print(f"{len(answered)} records: {len(lost)} lost, {len(double)} double")
    assert (lost, double) == ([], [])
