"""Sends requests through a new server until its request path is warm.

The workers warm up their models themselves. At READY, Java's request path is still cold, because it
runs interpreted for its first requests, and no worker has had a real batch yet.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from offpath.archive.photographs import BUNDLED
from offpath.handler.process.warmup import WARM_UP_HEADER

PHOTOGRAPH = BUNDLED / "espresso.jpg"
# After this many, the first request after READY costs the same as later ones.
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
    """Sends a model photographs, several at a time so that batches form and all workers run.

    The metrics count these requests. The prediction log leaves out those that carry the server's
    `key` (`TorchServe.warm_up_key`). Failures are not reported: the first real request shows them.
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
