"""What `offpath bench tradeoff` leaves: every window's raw values, as JSON; no statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling.result import has_format, reading, write_json
from profiling.tuning.result import Window
from profiling.tuning.space import Candidate

FORMAT = "offpath-tradeoff/1"


@dataclass(frozen=True)
class TradeoffPoint:
    """One setting under so many closed-loop clients, in one round."""

    round: int
    candidate: Candidate
    clients: int
    window: Window


@dataclass
class TradeoffResult:
    """A run.

    Attributes:
        reference: the preset; each knob is turned from there, the others stay.
        knobs: setting -> its values, ascending; see `profiling.tradeoff.KNOBS`.
        failures: what was left out -> why.
    """

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    workload: dict[str, Any]
    reference: Candidate
    knobs: dict[str, list[int]]
    points: list[TradeoffPoint] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def save_tradeoff(result: TradeoffResult, path: Path) -> None:
    """Writes the JSON, replacing the file as a whole."""
    write_json(FORMAT, result, path)


def is_tradeoff(path: Path) -> bool:
    """Whether a saved result is one of `offpath bench tradeoff`."""
    return has_format(FORMAT, path)


def load_tradeoff(path: Path) -> TradeoffResult:
    """Reads a saved result.

    Raises:
        ExpectedError: no such file, or not one of ours.
    """
    with reading(FORMAT, path, "bench tradeoff") as content:
        content["reference"] = Candidate(**content["reference"])
        content["points"] = [read_point(row) for row in content["points"]]
        return TradeoffResult(**content)


def read_point(row: dict[str, Any]) -> TradeoffPoint:
    """A point from its JSON."""
    return TradeoffPoint(
        row["round"],
        Candidate(**row["candidate"]),
        row["clients"],
        Window(**row["window"]),
    )
