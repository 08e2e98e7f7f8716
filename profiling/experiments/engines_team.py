"""The processes that one engine is measured in, one a core with one thread each, as workers run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from offpath.profiling.core.child_process import ChildProcess
from offpath.profiling.load.sampling import process_pss_bytes, process_rss_bytes

CHILD = "offpath.profiling.experiments.engines_child"
# Importing torch in as many processes as there are cores, from a cold disk.
LOAD_LIMIT_S = 600.0
# All processes of a window have their order by then.
HEAD_START_S = 0.05


class Team:
    """A context manager; no process is left when the block ends.

    Args:
        threads: of each process.
        module: what each of them runs.
    """

    def __init__(self, processes: int, threads: int, module: str = CHILD) -> None:
        self._count, self._threads, self._module = processes, threads, module
        self._stack = ExitStack()
        self._processes: list[ChildProcess] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, order: Mapping[str, Any]) -> dict[str, float]:
        """Ends what ran; starts the first process alone, and times it; then the others.

        Returns:
            import_s, of the first process: Python, torch and the handler; load_s, from then to its
            first answer, with its memory; the PSS of one process with all of them running.
        """
        self._stack.close()
        order = {**order, "threads": self._threads}
        # Its threads wait for answers: entered first, so that the processes end before it does.
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._count))
        begin_s = time.monotonic()
        self._processes = [self._begin(order, 1)]
        (answer,) = self._ask_all("load", **order)
        import_s = time.monotonic() - begin_s - answer["load_s"]
        rss_bytes = process_rss_bytes(self._processes[0].pid)
        others = [self._begin(order, number) for number in range(2, self._count + 1)]
        first, self._processes = self._processes, others
        self._ask_all("load", **order)
        self._processes = first + others
        return {
            "load_s": round(answer["load_s"], 3),
            "import_s": round(import_s, 3),
            "rss_bytes.engine": rss_bytes,
            "pss_bytes.engine": statistics.mean(
                process_pss_bytes(process.pid) for process in self._processes
            ),
        }

    def _begin(self, order: Mapping[str, Any], number: int) -> ChildProcess:
        name = f"{order['engine']}-{order['precision']}-{number}.log"
        log_file = Path(order["folder"]) / name
        process = ChildProcess(self._module, order["engine"], {}, log_file)
        return self._stack.enter_context(process)

    def check(self) -> dict[str, float]:
        """The first process's answers beside eager fp32's."""
        return self._processes[0].ask("check", limit_s=LOAD_LIMIT_S)

    def forward(self, batch_size: int, seconds: float) -> dict[str, float]:
        """One window of all processes at the same time."""
        self._ask_all("warm_up", batch_size=batch_size)
        begin_s = time.monotonic() + HEAD_START_S
        answers = self._ask_all(
            "forward", batch_size=batch_size, seconds=seconds, begin_s=begin_s
        )
        images = sum(one["images"] for one in answers)
        # Each by its own clock.
        per_s = sum(one["images"] / one["elapsed_s"] for one in answers)
        shares = [one["cpu_s"] / one["elapsed_s"] for one in answers]
        return {
            "images": images,
            "elapsed_s": images / per_s,
            "cpu_s.engine": sum(one["cpu_s"] for one in answers),
            "forward_ms": 1e3 * self._count / per_s,
            # With more threads an engine may leave cores idle by itself.
            "other_cores": (
                sum(max(0.0, 1 - share) for share in shares)
                if self._threads == 1
                else 0.0
            ),
        }

    def _ask_all(self, do: str, **order: Any) -> list[dict[str, Any]]:
        limit_s = LOAD_LIMIT_S + order.get("seconds", 0.0)

        def ask(process: ChildProcess) -> dict[str, Any]:
            return process.ask(do, limit_s=limit_s, **order)

        return list(self._pool.map(ask, self._processes))
