"""Suspends a canary that answers nothing: its requests go to the version it is split from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from offpath.serving.front.answers import Answers
from offpath.serving.front.splits import Split

NOT_READY = "no worker of it is READY"
FAILS = "it has answered none of its last requests"


def judge_canaries(
    canaries: Collection[Split], ready: Collection[tuple[str, str]], answers: Answers
) -> tuple[Split, ...]:
    """Returns the canaries with the reason why each is to be suspended, if it is.

    A canary without a READY worker comes back with its next one. One that only fails would fail
    again, so it waits for a new command.

    Args:
        canaries: those in force.
        ready: name and version of each model with a READY worker.
        answers: the answers so far.
    """
    judged = []
    for canary in canaries:
        why = "" if (canary.model, canary.version) in ready else NOT_READY
        if canary.suspended == FAILS or answers.only_fails(canary):
            why = FAILS
        judged.append(replace(canary, suspended=why))
    return tuple(judged)


def describe_change(before: Split, now: Split) -> str:
    """Returns what an operator has to know; empty if nothing has changed."""
    if before == now:
        return ""
    if not now.suspended:
        return f"canary {now} gets requests again"
    cure = "until one is"
    if now.suspended == FAILS:
        cure = f"until `offpath canary {now}` lets it try again"
    return f"canary {now} is suspended: {now.suspended}; it gets no requests {cure}"
