"""What `offpath bench engines` leaves: raw values as JSON; `engines_summary.py` computes from them.

A variant is an engine with a precision, written `openvino int8`. Runs whose machine, settings and
photographs are alike may be put together, whatever models and variants each of them measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from offpath.profiling.core.result import check_alike, renumber
from offpath.profiling.core.saved import Saved

BASELINE = "eager fp32"
# The baseline with the normalisation as a step of its own; shown beside the table, not in it.
UNFOLDED = "eager fp32 unfolded"


@dataclass(frozen=True)
class Window:
    """Forwards of one batch size for a while, of one process or of several at the same time.

    Attributes:
        threads: of each process.
        images, elapsed_s, cpu_s: one figure a process. CPU below threads x time means that
            something else had the cores.
    """

    round: int
    model: str
    variant: str
    batch_size: int
    threads: int
    images: list[int]
    elapsed_s: list[float]
    cpu_s: list[float]

    @property
    def processes(self) -> int:
        """How many there were."""
        return len(self.images)

    @property
    def per_s(self) -> float:
        """Images a second of all processes together, each by its own clock."""
        return sum(n / s for n, s in zip(self.images, self.elapsed_s))

    @property
    def ms_per_image(self) -> float:
        """Forward time of an image in one process, the mean of the processes."""
        return 1e3 * self.processes / self.per_s


@dataclass(frozen=True)
class Load:
    """One start of a team of processes.

    Attributes:
        import_s: of the first process, started alone: Python, torch and the handler.
        load_s: from then to its first answer: what the engine imports, loads and does once.
        rss_bytes: of the first process, after that answer.
        pss_bytes: of all processes together, each after its first answer.
        processes: how many those are.
    """

    round: int
    model: str
    variant: str
    import_s: float
    load_s: float
    rss_bytes: int
    pss_bytes: int
    processes: int


@dataclass(frozen=True)
class Parity:
    """Answers beside those of eager fp32, on photographs.

    Attributes:
        largest_move: of any probability of any photograph.
        top1_changes: photographs whose best class is another; near ties change easily.
        gate_move, gate_changes: the same on the photographs that the handler's parity gate takes
            by default; those have a clear answer where the model has any.
    """

    round: int
    model: str
    variant: str
    photographs: int
    largest_move: float
    top1_changes: int
    gate_move: float
    gate_changes: int


@dataclass(frozen=True)
class Artefact:
    """What a variant loads: the size of its files, and how long they took to build."""

    round: int
    model: str
    variant: str
    size_bytes: int
    build_s: float


@dataclass(frozen=True)
class EngineFailure:
    """A variant that could not be built, loaded or run; it is left out from then on."""

    round: int
    model: str
    variant: str
    reason: str


@dataclass
class EnginesResult:
    """A run.

    Attributes:
        workload: name, identity, mean_bytes and count of the photographs.
        not_run: variant -> why it cannot run on this machine.
        parity_bound: largest move that the handler lets pass by default.
    """

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workload: dict[str, Any]
    parity_bound: float | None = None
    not_run: dict[str, str] = field(default_factory=dict)
    artefacts: list[Artefact] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    parities: list[Parity] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    failures: list[EngineFailure] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Number of rounds begun."""
        return 1 + max((window.round for window in self.windows), default=-1)


ENGINES = Saved("offpath-engines/1", EnginesResult, "bench engines")


def merge_engines(first: EnginesResult, second: EnginesResult) -> EnginesResult:
    """The rounds of both, those of the second numbered after the first's.

    Raises:
        ExpectedError: the runs are unlike; the message names what differs.
    """
    check_alike(first, second, ("host", "settings", "workload"))
    offset = first.rounds
    return replace(
        first,
        not_run={**first.not_run, **second.not_run},
        artefacts=first.artefacts + renumber(second.artefacts, offset),
        loads=first.loads + renumber(second.loads, offset),
        parities=first.parities + renumber(second.parities, offset),
        windows=first.windows + renumber(second.windows, offset),
        failures=first.failures + renumber(second.failures, offset),
    )
