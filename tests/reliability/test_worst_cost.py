"""CPU seconds of the most expensive requests known; docs/security.md has the largest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offpath.handler.input_maker import silence_decoders
from tests.fuzz.costly_requests import (
    COSTLY,
    COSTLY_ENVELOPES,
    MOST_REQUEST_BYTES,
    WAYS_IN,
    Request,
)
from tests.fuzz.worst_cost import measure, report

MOST_S = 2.0
# docs/security.md: memory to plan per decode thread.
MOST_MB = 1000
# For each format, what costs most as it is: those are also sent in every envelope.
COSTLIEST = {
    "JPEG": "progressive",
    "PNG": "high",
    "GIF": "comments",
    "WEBP": "lossy",
    "BMP": "runs",
    "TIFF": "lzma",
    "npy": "parentheses",
}

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
    check(kind, name, Request(make()))


@pytest.mark.parametrize("way", [way for way in WAYS_IN if way != "raw"])
@pytest.mark.parametrize("kind, name", COSTLIEST.items(), ids=str)
def test_no_way_in_takes_more_than_two_seconds(kind: str, name: str, way: str) -> None:
    request = WAYS_IN[way](COSTLY[kind][name]())
    if len(request.body) > MOST_REQUEST_BYTES:
        pytest.skip("the server refuses this length")
    check(kind, f"{name}, {way}", request)


@pytest.mark.parametrize("name", COSTLY_ENVELOPES)
def test_no_envelope_takes_more_than_two_seconds(name: str) -> None:
    check("envelope", name, COSTLY_ENVELOPES[name]())


def check(kind: str, name: str, request: Request) -> None:
    silence_decoders()
    cost = measure(request)
    report(kind, name, len(request.body), cost)
    assert cost.cpu_s <= MOST_S and "BUG" not in cost.answer
    assert cost.answer != "the process ended" and cost.memory_mb <= MOST_MB
