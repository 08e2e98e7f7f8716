"""One line of `offpath check`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """How bad it is.

    `lost`: it works, and something is given away; `wrong`: it does not do what was asked.
    """

    OK = "ok"
    LOST = "lost"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        area: `host`, `config`, an archive's or a model's name.
        subject: what it is about.
        state: how bad it is.
        found: what there is.
        cure: the line to copy, or what to do; empty where all is well.
    """

    area: str
    subject: str
    state: State
    found: str
    cure: str = ""


def ok(area: str, subject: str, found: object) -> Finding:
    """As it should be."""
    return Finding(area, subject, State.OK, str(found))


def lost(area: str, subject: str, found: object, cure: str) -> Finding:
    """It works, and something is given away."""
    return Finding(area, subject, State.LOST, str(found), cure)


def wrong(area: str, subject: str, found: object, cure: str) -> Finding:
    """It does not do what was asked."""
    return Finding(area, subject, State.WRONG, str(found), cure)
