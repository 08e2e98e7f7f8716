"""A worker: one archive's handler behind Granian, in a process of its own.

The event loop only receives and sends. Decoding and the model run in the thread of `BatchQueue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import resource
import signal
import socket
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from granian.constants import HTTPModes
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]
from granian.server.embed import Server

from offpath.handler.process.warmup import WARM_UP_HEADER
from offpath.handler.request.body_from_front_door import (
    BODY_HEADER,
    ID_HEADER,
    KEY_HEADER,
    TYPE_HEADER,
)
from offpath.serving.granian.balance import Balance
from offpath.serving.granian.series import Metric, Series
from offpath.serving.granian.supervisor import BACKLOG, Supervisor, open_listener, send
from offpath.serving.granian.uploads import Body, BodyMemory
from offpath.serving.process.gpus import list_gpus
from offpath.serving.shell.archived_handler import Answer, ArchivedHandler, Request
from offpath.serving.shell.batch_queue import BatchQueue
from offpath.serving.shell.torchserve_http import (
    BUSY,
    HEALTHY,
    JSON_TYPE,
    MODEL_GONE,
    PING,
    ModelPaths,
    Refused,
)

logger = logging.getLogger("granian")
TICK_S = 1.0
# Seconds for the last answers of a worker that must be replaced.
END_S = 1.0
EXIT_STATUS = 1
# For the prediction log, bodies handed over by the door, and libraries.
KEPT_DESCRIPTORS = 100
WARM_UP_BATCHES = 3
# Least seconds between two messages of one line of code.
LOG_PAUSE_S = 1.0
# Memory for a body of at most this size is held before its bytes arrive.
SMALL_BYTES = 1 << 16
# HTTP names are in lower case here; the handler knows these four as nginx spells them.
SPELLED = {name.lower(): name for name in (KEY_HEADER, BODY_HEADER, TYPE_HEADER, ID_HEADER)}


class InheritedServer(Server):
    """Granian on a listener that this process was forked with.

    Granian would open its own, and then requests would be refused while a worker is replaced.
    """

    def __init__(self, listener: socket.socket, app: Any) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        super().__init__(
            app,
            log_enabled=False,
            websockets=False,
            # Neither nginx nor our clients speak HTTP/2, whose headers may take megabytes each.
            http=HTTPModes.http1,
            # Granian stops to accept connections at this number; `App` has the limit of requests.
            backpressure=max(1, min(descriptors - KEPT_DESCRIPTORS, 1 << 16)),
        )
        self._is_unix = listener.family == socket.AF_UNIX
        self._descriptor = listener.detach()

    def _init_shared_socket(self) -> None:
        make_holder: Any = SocketHolder
        self._shd = make_holder(self._descriptor, self._is_unix, BACKLOG)


class App:
    """Answers HTTP requests: Granian's RSGI application.

    `slot` is this worker's part of `plan`, the server's plan (`GranianServer`). `report` sends the
    metrics to `offpath serve`. `beat` moves the time at which the supervisor kills this process.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        slot: dict[str, Any],
        handler: ArchivedHandler,
        series: Series,
        report: Callable[[Any], bool],
        balance: Balance,
        beat: Callable[[], None],
    ) -> None:
        self.handler, self._series, self._report = handler, series, report
        self.balance, self._beat = balance, beat
        settings, version = slot["settings"], slot["version"]
        self._timeout_s = settings["responseTimeout"]
        self._paths = ModelPaths(slot["name"], version, plan["max_body_bytes"])
        self._memory = BodyMemory(plan["most_bytes"])
        self._most_requests = slot["queue"]
        self._has_door = plan["has_door"]
        self._labels = {"model_name": slot["name"], "model_version": version}
        self.is_ending = False
        self._loop = asyncio.get_running_loop()
        self._statuses, self._answered, self._took_s = [0] * 6, 0, 0.0
        self.batches = BatchQueue(
            self._handle, settings["batchSize"], settings["maxBatchDelay"] / 1000
        )
        self.server: Server | None = None

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        request_id, began_s = "", time.monotonic()
        try:
            headers = {SPELLED.get(k, k): v for k, v in scope.headers.items()}
            refusal = self._paths.refuse(scope.method, scope.path, headers.get("content-length"))
            if refusal is not None:
                raise Refused(refusal)
            if not self._has_door:
                request_id = str(uuid.uuid4())
            answer = await self._predict(scope, proto, headers, request_id, began_s)
            status, body = answer.status, answer.body
            out = list(answer.headers.items())
        except ProtocolClosed:
            return  # the client has left in the middle of its body
        except Refused as refused:
            status, body = refused.refusal.status, refused.refusal.body
            out = refused.refusal.headers
            if scope.path == PING:
                out = [("content-type", JSON_TYPE)]
                status, body = (503, body) if self.is_ending else (200, HEALTHY)
        if request_id:
            out.append(("x-request-id", request_id))
        if self.balance.ends_connection():
            out.append(("connection", "close"))
        self._statuses[status // 100] += 1
        proto.response_bytes(status, out, body)
        if not self._has_door and scope.path != PING:  # the door counts its own
            self.handler.count_requests(status, time.monotonic() - began_s)

    async def _predict(
        self, scope: Any, proto: Any, headers: dict[str, str], request_id: str, began_s: float
    ) -> Answer:
        """Returns the handler's answer.

        Raises:
            Refused: too many requests wait, the body is too large or slow, or the model is gone.
        """
        is_file = self._has_door and headers.get(BODY_HEADER)  # which the handler opens
        length = int(headers.get("content-length", -1))
        # Granian reads a body as a whole with less CPU time, but tells nobody when bytes arrive.
        is_small = 0 <= length <= SMALL_BYTES
        with self._memory.hold(length if is_small and not is_file else 0) as held:
            # An upload does not count as a request that waits, because it may never end.
            self._check_queue()
            body = b""
            if not is_file:
                with self._memory.receive(held):
                    body = await (proto() if is_small else self._read(proto, held, length))
            self._check_queue()
            if self._paths.is_explanation(scope.path):
                # TorchServe's word to a handler (explain in ts/torch_handler/base_handler.py).
                headers["explain"] = "True"
            request = Request(body, request_id, headers, time.monotonic())
            self.balance.add(1)
            try:
                answer: Answer = await self.batches.answer(request)
            finally:
                self.balance.add(-1)
            self._answered += 1
            self._took_s += time.monotonic() - began_s
            return answer

    def _check_queue(self) -> None:
        if self.is_ending:
            raise Refused(MODEL_GONE)
        if self.balance.requests >= self._most_requests:
            raise Refused(BUSY)

    async def _read(self, proto: Any, held: Body, length: int) -> bytes:
        """Reads a body and holds memory as its bytes arrive.

        A client could otherwise take all memory with a declared `length` alone (-1 if unknown).

        Raises:
            Refused: the body is too large, or there is no room.
            ProtocolClosed: the client has left in the middle.
        """
        parts = []
        async for part in proto:
            self._memory.grow(held, len(part))
            if held.size > self._paths.max_body_bytes:
                raise Refused(self._paths.too_large)
            parts.append(part)
        if held.size < length:  # Granian only ends the body
            raise ProtocolClosed
        return b"".join(parts)

    def _handle(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers a batch; runs in the thread of `BatchQueue`."""
        now_s = time.monotonic()
        waited_s = sum(now_s - request.arrived_s for request in requests)
        self._series.add("ts_queue_latency_microseconds", waited_s * 1e6, **self._labels)
        try:
            answers = self.handler.handle(requests)
        except Exception as error:
            # The handler answers every failure itself; this one is a bug in it.
            logger.exception("the handler failed on a batch")
            raise Refused(MODEL_GONE) from error
        diagnosis = self.handler.diagnosis
        if diagnosis is not None:
            self._loop.call_soon_threadsafe(self.replace, diagnosis)
        return answers

    def replace(self, why: str) -> None:
        """Ends this worker: what it has is refused, and the supervisor starts another one."""
        if self.is_ending:
            return
        self.is_ending = True
        logger.error("this worker must be replaced: %s", why)
        self.batches.abandon(Refused(MODEL_GONE))
        if self.server is not None:
            self.server.stop()
        # Granian may still wait for clients that send nothing.
        self._loop.call_later(END_S, self.exit)

    def exit(self) -> None:
        """Ends the process without clean-up, which could hang on a broken device."""
        self.write_series()
        os._exit(EXIT_STATUS)

    async def look_after(self) -> None:
        """Reports the metrics, and ends this worker if a batch hangs."""
        while True:
            self._beat()
            running_s = self.batches.running_s
            if running_s > self._timeout_s:
                self.replace(f"a batch has been running for {running_s:.0f} s")
            self._memory.end_late_uploads()
            self.write_series()
            await asyncio.sleep(TICK_S)

    def write_series(self) -> None:
        """Reports all metrics, with this object's own counts under TorchServe's names."""
        statuses, self._statuses = self._statuses, [0] * 6
        for hundred, count in enumerate(statuses):
            if count:
                self._series.add(f"Requests{hundred}XX", count, Level="Host")
        answered, took_s = self._answered, self._took_s
        self._answered, self._took_s = 0, 0.0
        self._series.add("ts_inference_requests_total", answered, **self._labels)
        self._series.add("ts_inference_latency_microseconds", took_s * 1e6, **self._labels)
        self._series.report(self._report)


def run_worker(
    plan: dict[str, Any],
    slot: dict[str, Any],
    listener: socket.socket | None,
    reports: socket.socket,
    supervisor: Supervisor,
) -> None:
    """Loads the archive, tells `offpath serve`, and serves until SIGTERM; never returns."""
    name = f"W-{slot['number']}-{slot['name']}_{slot['version']}"
    start_logging(name)
    series = Series()
    try:
        began_s = time.monotonic()
        handler = ArchivedHandler(
            Path(slot["folder"]),
            batch_size=slot["settings"]["batchSize"],
            gpu=choose_gpu(slot),
            make_metric=partial(Metric, series),
            name=slot["name"],
        )
        warm_up(handler, plan, slot["settings"]["batchSize"])
        load_ms = (time.monotonic() - began_s) * 1e3
        series.add("WorkerLoadTime", load_ms, False, WorkerName=name, Level="Host")
    except Exception as error:
        why = "".join(traceback.format_exception_only(error)).strip()
        send(reports, slot["number"], failed=why)
        # The terminal shows the first line alone.
        logger.exception("the model failed to load: %s", why)
        os._exit(EXIT_STATUS)
    pace_logging()
    listener = listener or open_listener(slot["listen"])
    peers = [
        other["number"]
        for other in plan["slots"]
        if other["listen"] == slot["listen"] and other is not slot
    ]
    beat = partial(supervisor.beat, slot["number"])
    beat()
    tell = partial(send, reports, slot["number"])
    balance = Balance(supervisor.means, slot["number"], peers)

    def make_app() -> App:  # in the event loop
        return App(plan, slot, handler, series, lambda sums: tell(series=sums), balance, beat)

    uvloop.run(serve(make_app, listener, lambda: tell(ready=handler.describe())))
    os._exit(0)


async def serve(
    make_app: Callable[[], App], listener: socket.socket, tell_ready: Callable[[], bool]
) -> None:
    """Answers requests until SIGTERM, then those in flight."""
    app = make_app()
    app.server = InheritedServer(listener, app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.server.stop)
    watch = asyncio.gather(app.look_after(), app.balance.run())
    tell_ready()
    # Granian answers the requests in flight before this returns.
    await app.server.serve()
    if app.is_ending:
        app.exit()
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    await asyncio.to_thread(app.batches.close)
    await asyncio.to_thread(app.handler.close)
    app.write_series()


def choose_gpu(slot: dict[str, Any]) -> int | None:
    """Returns the index of a worker's GPU, in turn as with TorchServe; None for the CPU."""
    gpus = list_gpus(slot["device"], slot["device_ids"])
    number = slot["number"] - (slot["first_slot"] if slot["device_ids"] else 0)
    return gpus[number % len(gpus)] if gpus else None


def warm_up(handler: ArchivedHandler, plan: dict[str, Any], batch_size: int) -> None:
    """Answers full batches of a photograph, which the prediction log leaves out."""
    photograph = Path(plan["photograph"]).read_bytes()
    headers = {WARM_UP_HEADER: plan["warm_up_key"]}
    for _ in range(WARM_UP_BATCHES):
        handler.handle([Request(photograph, "warm-up", headers)] * batch_size)


class Pacer(logging.Filter):
    """Lets a line of code log once per second, because clients or a sick model could cause many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # Not by the text, which may contain what a client sent.
        self._logged_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, now_s = (record.pathname, record.lineno), self._clock()
        is_due = now_s - self._logged_s.get(place, -math.inf) >= LOG_PAUSE_S
        if is_due:
            self._logged_s[place] = now_s
        return is_due


def start_logging(worker: str) -> None:
    """Writes warnings and errors to standard error, in the layout that server_log.py reads."""
    logging.basicConfig(
        format=f"%(asctime)s [%(levelname)s] {worker} %(name)s - %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    # It only says that packages are missing which no archive of ours needs, and would be the last
    # line before the end of a worker that was killed.
    logging.getLogger("ts.torch_handler.base_handler").setLevel(logging.ERROR)


def pace_logging() -> None:
    """Limits the lines from now on. While a model loads, one line of code may have much to say."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Pacer())
