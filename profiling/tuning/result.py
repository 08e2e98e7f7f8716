"""What a search leaves, as JSON: every window's raw values; it is saved after each candidate.

The same file continues an interrupted search. The latency bound is no part of a search's identity:
another bound reads the same measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.result import find_differences, reading, write_json
from profiling.tuning.space import Candidate

FORMAT = "offpath-tune/1"


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


def save_tuning(result: TuneResult, path: Path) -> None:
    """Writes the JSON, replacing the file as a whole."""
    write_json(FORMAT, result, path)


def load_tuning(path: Path) -> TuneResult:
    """Reads a saved search.

    Raises:
        ExpectedError: no such file, or not one of ours.
    """
    with reading(FORMAT, path, "tune") as content:
        content["reference"] = Candidate(**content["reference"])
        content["trials"] = [read_trial(row) for row in content["trials"]]
        content["finals"] = [read_final(row) for row in content["finals"]]
        return TuneResult(**content)


def read_trial(row: dict[str, Any]) -> Trial:
    """A trial from its JSON."""
    return Trial(
        Candidate(**row.pop("candidate")),
        [Window(**window) for window in row.pop("windows")],
        **row,
    )


def read_final(row: dict[str, Any]) -> FinalRound:
    """A final round from its JSON."""
    return FinalRound(
        row["round"], Candidate(**row["candidate"]), Window(**row["window"])
    )


def check_same_search(earlier: TuneResult, search: dict[str, Any], path: Path) -> None:
    """Raises ExpectedError when a study's measurements do not belong to this search."""
    differences = find_differences(earlier.search, search, "search")
    if differences:
        raise ExpectedError(
            f"study {str(path)!r} is of another search (there, here): "
            + "; ".join(differences[:5])
            + "; name another --study, or delete it"
        )
