"""What a search leaves, as JSON: every window's raw values; it is saved after each candidate.

The same file continues an interrupted search. The latency bound is no part of a search's identity:
another bound reads the same measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.result import find_differences
from offpath.profiling.core.saved import Saved
from offpath.profiling.experiments.tuning.space import Candidate


@dataclass(frozen=True)
class Window:
    """One window of load; see `profiling.result.Measurement`. Latencies are of the 200s."""

    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """Good replies a second."""
        return self.statuses.get("200", 0) / self.elapsed_s

    @property
    def failures(self) -> int:
        """Everything but the 200s."""
        return sum(self.statuses.values()) - self.statuses.get("200", 0)


@dataclass(frozen=True)
class Trial:
    """A candidate and its windows; `error` says why there are none."""

    candidate: Candidate
    windows: list[Window]
    ready_s: float
    error: str | None = None


@dataclass(frozen=True)
class FinalRound:
    """One finalist in one of the fresh rounds at the end."""

    round: int
    candidate: Candidate
    window: Window


@dataclass
class TuneResult:
    """A search.

    Attributes:
        search: what must be alike for a search to go on: model, archive, workload, load, host.
        reference: the preset's candidate.
    """

    command: str
    started_at: str
    search: dict[str, Any]
    reference: Candidate
    trials: list[Trial] = field(default_factory=list)
    finals: list[FinalRound] = field(default_factory=list)


TUNING = Saved("offpath-tune/1", TuneResult, "tune")


def check_same_search(earlier: TuneResult, search: dict[str, Any], path: Path) -> None:
    """Raises ExpectedError when a study's measurements do not belong to this search."""
    differences = find_differences(earlier.search, search, "search")
    if differences:
        raise ExpectedError(
            f"study {str(path)!r} is of another search (there, here): "
            + "; ".join(differences[:5])
            + "; name another --study, or delete it"
        )
