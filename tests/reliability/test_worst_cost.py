"""CPU seconds of the most expensive requests known; docs/results.md has the largest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import decode_image
from offpath.handler.input_maker import silence_decoders
from offpath.handler.request.forms import parse_body
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from offpath.handler.request.payload import read_payload
from tests.support.costly import (
    COSTLY,
    COSTLY_ENVELOPES,
    MAX_REQUEST_BYTES,
    WAYS_IN,
    Request,
    measure,
)
from tests.support.guarantees import guarantee

CONFIG = HandlerConfig(exif_orientation=True)
MAX_S = 2.0
# docs/security.md: memory to plan per decode thread.
MAX_MB = 1000
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


COSTS: list[float] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    print("\n| format | request | bytes | CPU s | MB | answer |\n|---|---|---|---|---|---|")
    yield
    print(f"\nthe costliest: {max(COSTS, default=0):.2f} s of CPU")


@guarantee("Costly images")
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


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("way", [way for way in WAYS_IN if way != "raw"])
@pytest.mark.parametrize("kind, name", COSTLIEST.items(), ids=str)
def test_no_way_in_takes_more_than_two_seconds(kind: str, name: str, way: str) -> None:
    request = WAYS_IN[way](COSTLY[kind][name]())
    if len(request.body) > MAX_REQUEST_BYTES:
        pytest.skip("the server refuses this length")
    check(kind, f"{name}, {way}", request)


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("name", COSTLY_ENVELOPES)
def test_no_envelope_takes_more_than_two_seconds(name: str) -> None:
    check("envelope", name, COSTLY_ENVELOPES[name]())


def check(kind: str, name: str, request: Request) -> None:
    silence_decoders()
    cost = measure(partial(decode, request))
    size = len(request.body)
    COSTS.append(cost.cpu_s)
    # A row of the table in docs/results.md.
    print(f"\n| {kind} | {name} | {size:,} | {cost.cpu_s:.2f} | {cost.memory_mb} | {cost.answer} |")
    assert cost.cpu_s <= MAX_S and "BUG" not in cost.answer
    assert cost.answer != "the process ended" and cost.memory_mb <= MAX_MB


def decode(request: Request) -> None:
    """Reads and decodes a request as a worker does."""
    body = parse_body(bytearray(request.body), request.content_type)
    payload = read_payload(body, CONFIG.max_payload_bytes)
    if payload[:6] == NPY_MAGIC:
        read_npy(payload, CONFIG.input_geometry.shape)
    else:
        decode_image(payload, CONFIG.decode_options)
