"""The first requests to a server that has just started, from one client."""

from __future__ import annotations

import http.client
import ssl
import statistics
import time
from collections.abc import Sequence
from itertools import cycle, islice
from urllib.parse import urlsplit

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.call import Call

STEADY_REQUESTS = 50
TIMEOUT_S = 120.0


def connect(scheme: str, netloc: str) -> http.client.HTTPConnection:
    """Returns a connection to a server under test, which has signed its certificate itself."""
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=TIMEOUT_S)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(netloc, timeout=TIMEOUT_S, context=trusting)


class FirstClient:
    """A client that needs no warm-up itself."""

    def __init__(self, server: str, url: str, call: Call) -> None:
        parts = urlsplit(url)
        self._server, self._call, self._path = server, call, parts.path
        self._connection = connect(parts.scheme, parts.netloc)

    def __enter__(self) -> FirstClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send_ms(self, body: bytes) -> float:
        """Sends one request and returns its latency in ms.

        Raises:
            ExpectedError: there is no reply, or its status is not 200.
        """
        start_s = time.perf_counter()
        try:
            self._connection.request("POST", self._path, body, self._call.all_headers)
            reply = self._connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise ExpectedError(
                f"server {self._server!r} said it was ready and did not answer: {error!r}"
            ) from error
        if reply.status != 200:
            raise ExpectedError(
                f"server {self._server!r} said it was ready and answered {reply.status}:"
                f" {content[:300]!r}"
            )
        return round(1000 * (time.perf_counter() - start_s), 3)

    def steady_ms(self, bodies: Sequence[bytes]) -> float:
        """Returns the median latency of the next requests, with the bodies in turn."""
        sent = [self.send_ms(body) for body in islice(cycle(bodies), STEADY_REQUESTS)]
        return round(statistics.median(sent), 3)
