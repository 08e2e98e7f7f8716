"""CPU seconds of the most expensive requests known; docs/security.md has the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offpath.handler.image.input_maker import silence_decoders
from tests.fuzz.costly_requests import COSTLY
from tests.fuzz.worst_cost import measure, report

MOST_S = 2.0

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "kind, name, make",
    [
        pytest.param(kind, name, make, id=f"{kind} {name}")
        for kind, makers in COSTLY.items()
        for name, make in makers.items()
    ],
)
def test_no_request_takes_more_than_two_seconds(
    kind: str, name: str, make: Callable[[], bytes]
) -> None:
    silence_decoders()
    body = make()
    cost = measure(body)
    report(kind, name, len(body), cost)
    assert cost.cpu_s <= MOST_S and "BUG" not in cost.answer
