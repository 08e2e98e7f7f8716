"""Sends requests through a fresh server until its path is warm.

The workers warm their model up by themselves; what is cold at READY is Java's request path, which
runs interpreted for its first requests, and each worker's first contact with a real batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from offpath.archive.photographs import BUNDLED
from offpath.handler.process.warmup import WARM_UP_HEADER

PHOTOGRAPH = BUNDLED / "espresso.jpg"
# Enough for the first request after READY to cost what the later ones do.
REQUESTS_PER_WORKER = 20
CONCURRENCY = 8
TIMEOUT_S = 60.0


def warm_up(
    inference_url: str,
    model_name: str,
    workers: int,
    token: str | None = None,
    socket: Path | None = None,
    key: str | None = None,
) -> None:
    """Sends a model some photographs, several at a time so that batches form and all workers run.

    They are counted in the metrics, and where they carry the server's `key`
    (`TorchServe.warm_up_key`) the prediction log has none of them.

    Failures are not reported here: the first real request meets them again.
    """
    headers = {WARM_UP_HEADER: key} if key else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = PHOTOGRAPH.read_bytes()
    path = f"/predictions/{model_name}"
    transport = httpx.HTTPTransport(uds=str(socket)) if socket else None
    with httpx.Client(
        base_url=inference_url,
        headers=headers,
        timeout=TIMEOUT_S,
        trust_env=False,
        transport=transport,
    ) as client, ThreadPoolExecutor(CONCURRENCY) as pool:
        list(
            pool.map(
                lambda _: client.post(path, content=body),
                range(workers * REQUESTS_PER_WORKER),
            )
        )
