"""One observation about a host, a configuration, an archive or a running server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    OK = "ok"
    # It works, but speed, metrics or safety is given away.
    LOST = "lost"
    # It does not do what was asked.
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One observation, with its cure.

    Attributes:
        area: `host`, `config`, `server`, or the name of an archive or model.
        subject: the setting or part that was looked at.
        state: severity.
        found: the present value, and the cost where there is one.
        cure: the line to copy, or what to do; empty where all is well.
    """

    area: str
    subject: str
    state: State
    found: str
    cure: str = ""

    @property
    def text(self) -> str:
        """The finding in one line, without its state."""
        return f"{self.area}: {self.found}" + (f"; {self.cure}" if self.cure else "")


def ok(area: str, subject: str, found: object) -> Finding:
    return Finding(area, subject, State.OK, str(found))


def lost(area: str, subject: str, found: object, cure: str) -> Finding:
    return Finding(area, subject, State.LOST, str(found), cure)


def wrong(area: str, subject: str, found: object, cure: str) -> Finding:
    return Finding(area, subject, State.WRONG, str(found), cure)


def grade(area: str, subject: str, found: object, loss: str | None, cure: str) -> Finding:
    """Returns a `lost` finding if there is a loss, otherwise an `ok` one with what was found."""
    return lost(area, subject, loss, cure) if loss else ok(area, subject, found)
