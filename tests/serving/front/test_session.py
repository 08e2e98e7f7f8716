"""The tasks of a session, without a server."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.serving.process.interrupts import Hangup
from offpath.serving.session import Session, View


class Said(View):
    def __init__(self) -> None:
        self.problems: list[str] = []

    def show_problem(self, text: str) -> None:
        self.problems.append(text)


def test_a_task_with_a_bug_is_shown_once_and_the_others_go_on() -> None:
    said, rounds = Said(), 0

    def fail() -> None:
        if rounds != 2:
            raise ValueError("odd")

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            raise ExpectedError("the server has ended")

    def make_settings(kind: str | None) -> None:
        raise AssertionError("nothing starts")

    session = Session(make_settings, said, Hangup())
    session.tasks, session.watch_s = (fail, count), 0
    with pytest.raises(ExpectedError, match="the server has ended"):
        while True:
            session.look_after()
    assert [text.splitlines()[-2:] for text in said.problems] == 2 * [
        ["ValueError: odd", "fail failed, the rest goes on"]
    ], "again after a round without it"
