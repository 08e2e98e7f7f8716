"""The processes that one variant is measured in, for one round.

One process a core with one thread each, as workers run; and one process with all the threads. Each
window begins in all its processes at the same moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from offpath.profiling.core.child_process import ChildProcess
from offpath.profiling.experiments.engines_choice import EnginesChoices, Subject
from offpath.profiling.experiments.engines_result import Load, Parity, Window
from offpath.profiling.load.sampling import process_pss_bytes, process_rss_bytes

# Importing torch in as many processes as there are cores, from a cold disk.
LOAD_LIMIT_S = 600.0
# All processes of a window have their order by then.
HEAD_START_S = 0.05


class Team:
    """A context manager; the processes are gone when the block ends.

    `load` first; `measure_wide` last, because it ends the processes with one thread.

    Args:
        module: that each process runs.
    """

    def __init__(
        self,
        round_: int,
        subject: Subject,
        choices: EnginesChoices,
        module: str = "offpath.profiling.experiments.engines_child",
    ) -> None:
        self._module = module
        self._row = (round_, subject.model, subject.variant)
        self._subject, self._choices = subject, choices
        self._stack, self._narrow_stack = ExitStack(), ExitStack()
        self._narrow: list[ChildProcess] = []
        self._wide: ChildProcess | None = None

    def __enter__(self) -> Team:
        # Its threads wait for answers: entered first, so that the processes end before it does.
        self._pool = self._stack.enter_context(
            ThreadPoolExecutor(self._choices.processes + 1)
        )
        self._stack.enter_context(self._narrow_stack)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self) -> Load:
        """Starts the first process alone, and times it; then the others."""
        begin_s = time.monotonic()
        first = self._start(self._narrow_stack, "first")
        load_s = self._load(first, threads=1)
        ready_s = time.monotonic() - begin_s
        rss_bytes = process_rss_bytes(first.pid)
        self._narrow = [first]
        for number in range(1, self._choices.processes):
            self._narrow.append(self._start(self._narrow_stack, f"{number + 1}"))
        if self._choices.processes > 1:
            self._wide = self._start(self._stack, "wide")
        loads = [self._pool.submit(self._load, p, threads=1) for p in self._narrow[1:]]
        if self._wide is not None:
            threads = self._choices.processes
            loads.append(self._pool.submit(self._load, self._wide, threads=threads))
        for load in loads:
            load.result()
        return Load(
            *self._row,
            import_s=round(ready_s - load_s, 3),
            load_s=round(load_s, 3),
            rss_bytes=rss_bytes,
            pss_bytes=sum(process_pss_bytes(process.pid) for process in self._narrow),
            processes=len(self._narrow),
        )

    def _start(self, stack: ExitStack, name: str) -> ChildProcess:
        log_file = self._subject.folder / f"{self._subject.variant}-{name}.log"
        process = ChildProcess(
            self._module,
            self._subject.title,
            {},
            log_file,
        )
        return stack.enter_context(process)

    def _load(self, process: ChildProcess, threads: int) -> float:
        answer = process.ask(
            "load", limit_s=LOAD_LIMIT_S, threads=threads, **self._subject.order
        )
        return float(answer["load_s"])

    def check(self) -> Parity:
        """The first process's answers beside the reference's."""
        answer = self._narrow[0].ask("check", limit_s=LOAD_LIMIT_S)
        everything, gate = answer["all"], answer["gate"]
        return Parity(
            *self._row,
            photographs=everything["pictures"],
            largest_move=everything["largest_move"],
            top1_changes=everything["top1_changes"],
            gate_move=gate["largest_move"],
            gate_changes=gate["top1_changes"],
        )

    def measure(self) -> list[Window]:
        """Each batch size in the first process alone, then in all of them at the same time."""
        teams = [self._narrow[:1]]
        if len(self._narrow) > 1:
            teams.append(self._narrow)
        return [
            self._measure(processes, batch_size, threads=1)
            for batch_size in self._choices.batch_sizes
            for processes in teams
        ]

    def measure_wide(self) -> list[Window]:
        """Each batch size in one process with all the threads; the others end before that."""
        if self._wide is None:
            return []
        self._narrow_stack.close()
        return [
            self._measure([self._wide], batch_size, threads=self._choices.processes)
            for batch_size in self._choices.batch_sizes
        ]

    def _measure(
        self, processes: Sequence[ChildProcess], batch_size: int, threads: int
    ) -> Window:
        self._ask_all(processes, "warm_up", batch_size=batch_size)
        answers = self._ask_all(
            processes,
            "forward",
            batch_size=batch_size,
            seconds=self._choices.seconds,
            begin_s=time.monotonic() + HEAD_START_S,
        )
        return Window(
            *self._row,
            batch_size=batch_size,
            threads=threads,
            images=[answer["images"] for answer in answers],
            elapsed_s=[answer["elapsed_s"] for answer in answers],
            cpu_s=[answer["cpu_s"] for answer in answers],
        )

    def _ask_all(
        self, processes: Sequence[ChildProcess], do: str, **order: Any
    ) -> list[dict[str, Any]]:
        limit_s = LOAD_LIMIT_S + self._choices.seconds

        def ask(process: ChildProcess) -> dict[str, Any]:
            return process.ask(do, limit_s=limit_s, **order)

        return list(self._pool.map(ask, processes))
