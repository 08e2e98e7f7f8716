"""One port before several models where no front door chooses by the path.

A process of its own passes each request on, as it is, to the worker of its model that has the
fewest. Workers listen on Unix sockets, as behind the front door.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop
from yarl import URL

from offpath.serving.granian.supervisor import open_listener
from offpath.serving.granian.worker import InheritedServer
from offpath.serving.shell.torchserve_http import (
    METHODS,
    MODEL_GONE,
    NO_PATH,
    PING,
    ModelPaths,
    Refusal,
    Refused,
    list_paths,
)

# Headers of one connection, which the next one has its own of.
HOP = frozenset(("connection", "transfer-encoding", "expect", "host", "keep-alive"))
OWN = HOP | {"content-length", "date", "server"}
# aiohttp would add these.
UNASKED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass
class Upstream:
    """A worker, and the requests that it has of this process."""

    session: aiohttp.ClientSession
    requests: int = 0


class Router:
    """Granian's RSGI application; must be made in a running event loop."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._most_bytes = plan["max_body_bytes"]
        self._too_large = ModelPaths("", None, self._most_bytes).too_large
        self._upstreams: list[Upstream] = []
        # Path -> the workers of its model. Paths without a version lead to the first one.
        self._routes: dict[str, list[Upstream]] = {}
        default: dict[str, str] = {}
        for slot in plan["slots"]:
            if "folder" in slot:
                name, version = slot["name"], slot["version"]
                ends = [f"{name}/{version}"]
                if default.setdefault(name, version) == version:
                    ends.append(name)
                self._add(slot["listen"], ends)

    def _add(self, path: str, ends: list[str]) -> None:
        session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            timeout=aiohttp.ClientTimeout(),  # the worker has its own
            auto_decompress=False,
            skip_auto_headers=UNASKED,
        )
        self._upstreams.append(Upstream(session))
        for route in list_paths(ends):
            self._routes.setdefault(route, []).append(self._upstreams[-1])

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        """Answers one HTTP request with a worker's answer."""
        if int(scope.headers.get("content-length") or 0) > self._most_bytes:
            refuse(proto, self._too_large)
            return
        # Any worker answers /ping.
        upstreams = self._upstreams if scope.path == PING else self._routes.get(scope.path)
        if upstreams is None:
            refuse(proto, NO_PATH)
            return
        for upstream in sorted(upstreams, key=lambda one: one.requests):
            upstream.requests += 1
            try:
                proto.response_bytes(*await self._ask(upstream, scope, proto))
                return
            except aiohttp.ClientConnectorError:
                continue  # nothing was sent, so another worker may be asked
            except aiohttp.ClientError as error:
                cause = error.__cause__
                refusal = cause.refusal if isinstance(cause, Refused) else MODEL_GONE
                refuse(proto, refusal)
                return
            finally:
                upstream.requests -= 1
        refuse(proto, MODEL_GONE)

    async def _ask(
        self, upstream: Upstream, scope: Any, proto: Any
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Returns the status, headers and body of a worker's answer."""
        path, query = scope.path, scope.query_string
        url = URL.build(scheme="http", host="worker", path=path, query_string=query)
        # A worker that refuses a request at once would not read its body.
        is_read = scope.method in METHODS and path != PING
        left = HOP if is_read else HOP | {"content-length"}
        async with upstream.session.request(
            scope.method,
            url,
            headers=[(k, v) for k, v in scope.headers.items() if k not in left],
            data=self._read(scope, proto) if is_read else None,
        ) as reply:
            headers = [(k, v) for k, v in reply.headers.items() if k.lower() not in OWN]
            return reply.status, headers, await reply.read()

    async def _read(self, scope: Any, proto: Any) -> AsyncIterator[bytes]:
        """Yields the parts of a body.

        Raises:
            Refused: the body is too large.
            ConnectionError: the client has left, so the worker need not wait for the rest.
        """
        size = 0
        async for part in proto:
            size += len(part)
            if size > self._most_bytes:
                raise Refused(self._too_large)
            yield part
        # Granian only ends the body.
        if size < int(scope.headers.get("content-length") or 0):
            raise ConnectionError("the client has left")

    async def close(self) -> None:
        """Closes the connections to the workers."""
        for upstream in self._upstreams:
            await upstream.session.close()


def refuse(proto: Any, refusal: Refusal) -> None:
    """Answers a request that no worker can answer."""
    proto.response_bytes(refusal.status, refusal.headers, refusal.body)


def run_router(plan: dict[str, Any], slot: dict[str, Any], listener: socket.socket | None) -> None:
    """Passes requests on until SIGTERM, then answers those in flight; never returns."""
    uvloop.run(serve(plan, listener or open_listener(slot["listen"])))
    os._exit(0)


async def serve(plan: dict[str, Any], listener: socket.socket) -> None:
    """Runs Granian on the listener."""
    router = Router(plan)
    server = InheritedServer(listener, router)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    # Granian answers the requests in flight before this returns.
    await server.serve()
    await router.close()
