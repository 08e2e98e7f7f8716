"""Marks of the tests that hold what docs/security.md and docs/reliability.md promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def guarantee(promise: str, file: str = "", old: str = "", new: str = "") -> Callable[[Test], Test]:
    """Marks a test that holds a promise, and the change of the product that must make the test red.

    All arguments are literals, because `python -m tests.mutations` reads them without an import.

    Args:
        promise: the words in bold, or the first cell, of the promise's row in its page.
        file: path of the changed file, if there is a mutation.
        old: text that stands in the file once.
        new: its replacement, which breaks the promise.
    """

    def leave_unchanged(test: Test) -> Test:
        return test

    return leave_unchanged
