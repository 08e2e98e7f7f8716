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
# What costs most as it is; sent in every envelope too.
COSTLIEST = {"PNG": "high", "GIF": "comments", "WEBP": "lossy", "BMP": "runs"}
CASES: dict[str, Callable[[], Request]] = {
    **{
        f"{kind} | {name}": lambda make=make: Request(make())  # type: ignore[misc]
        for kind, makers in COSTLY.items()
        for name, make in makers.items()
    },
    **{
        f"{kind} | {name}, {way}": lambda wrap=wrap, make=COSTLY[kind][name]: wrap(make())
        for kind, name in COSTLIEST.items()
        for way, wrap in WAYS_IN.items()
    },
    **{f"envelope | {name}": make for name, make in COSTLY_ENVELOPES.items()},
}
COSTS: list[float] = []

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    print("\n| format | request | bytes | CPU s | MB | answer |\n|---|---|---|---|---|---|")
    yield
    print(f"\nthe costliest: {max(COSTS, default=0):.2f} s of CPU")


@guarantee("Costly images")
@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("case", CASES)
def test_no_request_takes_more_than_two_seconds(case: str) -> None:
    request = CASES[case]()
    size = len(request.body)
    if size > MAX_REQUEST_BYTES:
        pytest.skip("the server refuses this length")
    silence_decoders()
    cost = measure(partial(decode, request))
    COSTS.append(cost.cpu_s)
    # A row of the table in docs/results.md.
    print(f"\n| {case} | {size:,} | {cost.cpu_s:.2f} | {cost.memory_mb} | {cost.answer} |")
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
