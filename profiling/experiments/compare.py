"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.runner import START
from offpath.profiling.experiments.compare_report import SERVER
from offpath.profiling.experiments.limit_subject import (
    LIMIT_BATCH_SIZE,
    LIMIT_SECONDS,
    list_limits,
)
from offpath.profiling.experiments.on_servers import (
    Bench,
    Choices,
    Subject,
    open_bench,
)
from offpath.profiling.experiments.server_subject import PROBE_START, ServerSubject
from offpath.profiling.load.limits import LimitMeter

NAME = "compare"


@dataclass(frozen=True)
class CompareChoices(Choices):
    """See `offpath bench compare --help`.

    Attributes:
        workers: each server with each of these; one a core where there are none.
    """

    probes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """None where only starts are probed."""
        return super().cells if self.windows.seconds != 0 else []

    @property
    def settings(self) -> dict[str, Any]:
        """See `Choices`."""
        return {
            **super().settings,
            "probes": list(self.probes),
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }

    @property
    def estimated_s(self) -> float:
        """See `Choices`."""
        limits_s = (len(self.workloads) + 1) * LIMIT_SECONDS * self.rounds
        return limits_s + max(1, len(self.workers)) * super().estimated_s


def run_compare(
    choices: CompareChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it; arguments and errors: see `open_bench` and `Bench.find_servers`."""
    meter = LimitMeter(choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
    with meter, open_bench(NAME, choices, observer, save) as bench:
        servers = list_servers(choices, bench)
        limits: list[Subject] = []
        if choices.cells:
            limits += list_limits(meter, bench, [one.server for one in servers])
        return bench.measure([*limits, *servers])


def list_servers(choices: CompareChoices, bench: Bench) -> list[ServerSubject]:
    """The servers, with each number of workers that was asked for."""
    probe = (START,) if PROBE_START in choices.probes else ()
    return [
        ServerSubject(
            name_team(server.name, count, choices.workers),
            server,
            bench,
            {} if count is None else {SERVER: server.name, "workers": count},
            choices.probes,
            (*choices.cells, *probe),
        )
        for count in choices.workers or (None,)
        for server in bench.find_servers(count)
    ]


def name_team(server: str, count: int | None, counts: tuple[int, ...]) -> str:
    """The variant of a server with so many workers; its own name where there is one number."""
    words = "1 worker" if count == 1 else f"{count} workers"
    return server if len(counts) < 2 else f"{server}, {words}"
