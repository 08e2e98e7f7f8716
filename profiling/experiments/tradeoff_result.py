"""What `offpath bench tradeoff` leaves: every window's raw values, as JSON; no statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.profiling.core.saved import Saved
from offpath.profiling.experiments.tuning.result import Window
from offpath.profiling.experiments.tuning.space import Candidate


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


TRADEOFF = Saved("offpath-tradeoff/1", TradeoffResult, "bench tradeoff")
