"""CPU time per batch with tracing off, of one request in a hundred, and of every request."""

from __future__ import annotations

import time
from pathlib import Path

from offpath.handler.tracing import Tracer
from tests.handler.loaded_service import load_service, predict
from tests.support.images import jpeg

BATCHES_A_ROUND = 12
SHARES = (None, 0.01, 1.0)


def measure(mar: Path, endpoint: str, rounds: int) -> list[list[float]]:
    """Returns this process's CPU ms per batch of eight 500 x 333 JPEGs, one value per round.

    The whole process counts, including the exporting thread.
    """
    service = load_service(str(mar))
    handler = service._entry_point.__self__
    body = bytearray(jpeg(size=(500, 333)))
    rows = [
        {
            "requestId": f"request-{index}".encode(),
            "headers": [{"name": b"user-agent", "value": b"measuring"}],
            "parameters": [{"name": "body", "contentType": "", "value": body}],
        }
        for index in range(8)
    ]
    tracers = [s if s is None else Tracer(endpoint, s, {}) for s in SHARES]
    times: list[list[float]] = [[] for _ in tracers]
    for number in range(rounds + 1):
        for tracer, kept in zip(tracers, times):
            handler._tracer = tracer
            begin_s = time.process_time()
            for _ in range(BATCHES_A_ROUND):
                predict(service, rows)
            if number:  # the first round warms up
                kept.append(1e3 * (time.process_time() - begin_s) / BATCHES_A_ROUND)
    handler._tracer = None
    for tracer in tracers:
        if tracer is not None:
            tracer.close()
    return times
