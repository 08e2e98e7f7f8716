"""A worker: one archive's classifier behind Granian, in a process of its own.

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
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from granian.constants import HTTPModes
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]
from granian.server.embed import Server as HTTPServer

from offpath.archive.mar_file import unpack_missing
from offpath.handler.contract import Model, Reply, Request
from offpath.handler.error_kinds import ErrorKind
from offpath.handler.errors import ItemError
from offpath.handler.request.body_from_front_door import DoorBodies
from offpath.serving.granian.balance import Balance
from offpath.serving.granian.metric_sums import MetricSums
from offpath.serving.granian.plan import Plan, WorkerPlan
from offpath.serving.granian.supervisor import BACKLOG, Supervisor, path_leads_to, send
from offpath.serving.granian.suspects import SharedNotes, WatchedModel
from offpath.serving.granian.uploads import Body, BodyMemory
from offpath.serving.process.gpus import list_gpus
from offpath.serving.process.ports import WRONG_HOST, may_be_host
from offpath.serving.server.served_model import ServedModel
from offpath.serving.server.server_settings import LOOPBACK
from offpath.serving.service.archived_classifier import load_classifier
from offpath.serving.service.costs import LONG_WAIT_S
from offpath.serving.service.messages import Refused, list_served
from offpath.serving.service.model_service import ModelService, ServiceSettings, ignore

if TYPE_CHECKING:  # the second imports what our classifier does not need
    from offpath.handler.classifier import OffpathClassifier
    from offpath.serving.granian.foreign_handler import ForeignHandler

logger = logging.getLogger("granian")
TICK_S = 1.0
FOREIGN_NAME = ErrorKind(403, "Forbidden", WRONG_HOST)
PATH_LOOK_S = 0.005
# Seconds for the last answers of a worker that must be replaced.
END_S = 1.0
EXIT_STATUS = 1
# For the prediction log, bodies handed over by the door, and libraries.
KEPT_DESCRIPTORS = 100
# TorchServe's names for the counters of `ModelService`: answered, took_s, waited_s.
COUNTERS = (
    "ts_inference_requests_total",
    "ts_inference_latency_microseconds",
    "ts_queue_latency_microseconds",
)
MAX_REASON_CHARS = 10_000
# Of the requests that wait long, the client of one is watched in so many seconds.
ASK_S = 0.04
# Least seconds between two messages of one line of code.
LOG_PAUSE_S = 1.0
# Memory for a body of at most this size is held before its bytes arrive.
SMALL_BYTES = 1 << 17
# Bodies arrive in parts of this size too: with half of it, those of 20 MB took 50 % more CPU time.
MAX_HEADER_BYTES = 1 << 18


class InheritedServer(HTTPServer):
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
            http1_settings=HTTP1Settings(max_buffer_size=MAX_HEADER_BYTES),
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

    `worker` is this worker's part of `plan`. `count_requests` and `open_request` are those of
    `ModelService`. `report` sends the metrics to `offpath serve`. `beat` moves the time at which
    the supervisor kills this process.
    """

    def __init__(
        self,
        plan: Plan,
        worker: WorkerPlan,
        served: Model,
        count_requests: Callable[..., None],
        open_request: Callable[[Request], Request] | None,
        sums: MetricSums,
        report: Callable[[Any], bool],
        balance: Balance,
        beat: Callable[[], None],
    ) -> None:
        self._sums, self._report = sums, report
        self.balance, self._beat = balance, beat
        model = worker.model
        settings = ServiceSettings(
            name=model.name,
            version=model.version,
            batch_size=model.settings.batch_size,
            max_batch_delay_ms=model.settings.max_batch_delay_ms,
            response_timeout_s=model.settings.response_timeout_s,
            max_body_bytes=plan.max_body_bytes,
            max_requests=worker.queue,
            served=list_served((one.model.name, one.model.version) for one in plan.workers),
            is_foreign=bool(model.foreign_handler),
            busy_status=plan.busy_status,
        )
        # As JSON has carried it, a list.
        self._names = None if plan.names is None else tuple(plan.names)
        self._memory = BodyMemory(plan.max_bytes)
        self._labels: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
        self.is_ending = False
        self._loop = asyncio.get_running_loop()
        self._statuses, self._reported = [0] * 6, (0.0, 0.0, 0.0)
        self.service = ModelService(
            served, settings, count_requests, balance.add, self._replace_soon, open_request
        )
        self.http: HTTPServer | None = None
        self._ask_s = 0.0

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        headers = dict(scope.headers.items())
        with self._memory.hold(0) as held:
            body = self._receive(proto, held, int(headers.get("content-length", -1)))
            try:
                if self._names is None or may_be_host(headers.get("host", LOOPBACK), self._names):
                    answer = self.service.answer(scope.method, scope.path, headers, body)
                    if self.service.wait_s > LONG_WAIT_S and time.monotonic() > self._ask_s:
                        self._ask_s = time.monotonic() + ASK_S
                        answer = self._while_connected(proto, answer)
                    reply = await answer
                else:
                    reply = Refused(FOREIGN_NAME).reply
            except ProtocolClosed:
                return  # the client has left in the middle of its body
        out = list(reply.headers.items())
        if self.balance.surplus > 0:
            self.balance.surplus -= 1
            out.append(("connection", "close"))
        self._statuses[reply.status // 100] += 1
        proto.response_bytes(reply.status, out, reply.body)

    async def _while_connected(self, proto: Any, answer: Coroutine[Any, Any, Reply]) -> Reply:
        """Waits for an answer; raises ProtocolClosed when the client leaves before it.

        Only done for some requests that wait long, because asking Granian takes a quarter of the
        CPU time of a small photograph.
        """
        began_s, task = time.monotonic(), asyncio.ensure_future(answer)
        left = asyncio.ensure_future(proto.client_disconnect())
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self.service.costs.note_left(time.monotonic() - began_s)
            raise ProtocolClosed
        finally:
            left.cancel()
            task.cancel()

    async def _receive(self, proto: Any, held: Body, length: int) -> AsyncIterator[bytes]:
        """Yields the parts of a body and holds memory as they arrive.

        A client could otherwise take all memory with a declared `length` alone (-1 if unknown).

        Raises:
            Refused: there is no room, or the upload is too slow.
            ProtocolClosed: the client has left in the middle.
        """
        with self._memory.receive(held):
            if 0 <= length <= SMALL_BYTES:
                self._memory.grow(held, length)
                # With less CPU time, but Granian tells nobody when bytes arrive.
                yield await proto()
                return
            async for part in proto:
                self._memory.grow(held, len(part))
                yield part
        if held.size < length:  # Granian only ends the body
            raise ProtocolClosed

    def _replace_soon(self, why: str) -> None:
        self._loop.call_soon_threadsafe(self.replace, why)

    def replace(self, why: str) -> None:
        """Ends this worker: what it has is refused, and the supervisor starts another one."""
        if self.is_ending:
            return
        self.is_ending = True
        logger.error("this worker must be replaced: %s", why)
        self.service.end()
        if self.http is not None:
            self.http.stop()
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
            why = self.service.health
            if why is not None:
                self.replace(why)
            self._memory.end_late_uploads()
            self.write_series()
            await asyncio.sleep(TICK_S)

    def write_series(self) -> None:
        """Reports all metrics, with this object's own counts under TorchServe's names."""
        statuses, self._statuses = self._statuses, [0] * 6
        for hundred, count in enumerate(statuses):
            if count:
                self._sums.add(f"Requests{hundred}XX", count, Level="Host")
        service, before = self.service, self._reported
        self._reported = service.answered, 1e6 * service.took_s, 1e6 * service.waited_s
        for name, now, reported in zip(COUNTERS, self._reported, before):
            self._sums.add(name, now - reported, **self._labels)
        self._sums.report(self._report)


def run_worker(
    worker: WorkerPlan,
    listener: socket.socket | None,
    reports: socket.socket,
    supervisor: Supervisor,
    notes: SharedNotes,
) -> None:
    """Loads the archive, tells `offpath serve`, and serves until SIGTERM; never returns."""
    number = worker.number
    start_logging(worker.log_name)
    sums = MetricSums()
    try:
        began_s = time.monotonic()
        door = DoorBodies.from_environment() if supervisor.plan.has_door else None
        model, count_requests = load_model(worker, supervisor.plan, sums)
        load_ms = (time.monotonic() - began_s) * 1e3
        sums.add("WorkerLoadTime", load_ms, False, WorkerName=worker.log_name, Level="Host")
    except Exception as error:
        why = "".join(traceback.format_exception_only(error)).strip()
        while not send(
            reports, number, failed=why[:MAX_REASON_CHARS]
        ):  # until the supervisor's time is up
            time.sleep(PATH_LOOK_S)
        # The terminal shows the first line alone.
        logger.exception("the model failed to load: %s", why)
        os._exit(EXIT_STATUS)
    pace_logging()
    listener = listener or supervisor.open_listener(worker)
    plan = supervisor.plan
    at_port = [other.number for other in plan.workers if other.socket is None]
    peers = [other for other in at_port if other != number]
    beat = partial(supervisor.beat, number)
    beat()
    tell = partial(send, reports, number)
    balance = Balance(supervisor.means, number, peers)
    # Otherwise a connection that waited for this worker could be answered, and the same client's
    # next one be refused.
    while not path_leads_to(worker.socket):
        time.sleep(PATH_LOOK_S)

    count_refused = partial(sums.add, "offpath_refused_images_total", ModelName=worker.model.name)
    count_refused(0)
    open_request = None if door is None else partial(open_from_door, door)
    watched = WatchedModel(
        model, notes, supervisor.suspects.shared, partial(count_refused, 1), open_request
    )

    def make_app() -> App:  # in the event loop
        return App(
            plan,
            worker,
            watched,
            count_requests,
            open_request,
            sums,
            lambda series: tell(series=series),
            balance,
            beat,
        )

    uvloop.run(serve(make_app, listener, lambda: tell(ready=model.describe())))
    os._exit(0)


def open_from_door(door: DoorBodies, request: Request) -> Request:
    """Gives a request the body that the front door has named; raises Refused if that fails."""
    try:
        return door.open(request)
    except ItemError as error:
        raise Refused(ErrorKind(error.status, error.type, error.message)) from None


def load_model(
    worker: WorkerPlan, plan: Plan, sums: MetricSums
) -> tuple[OffpathClassifier | ForeignHandler, Callable[..., None]]:
    """Loads the worker's archive, and warms up our classifier.

    Returns:
        the model, and what counts its requests.
    """
    model, folder, gpu = worker.model, Path(worker.folder), choose_gpu(worker.model, worker.number)
    unpack_missing(Path(model.archive), folder, worker.changed_ns)
    size = model.settings.batch_size
    if model.foreign_handler:
        from offpath.serving.granian.foreign_handler import ForeignHandler

        foreign = ForeignHandler(
            folder, model.foreign_handler, plan.foreign, sums, size, gpu, model.name
        )
        return foreign, ignore  # `App` counts TorchServe's own metrics
    classifier = load_classifier(folder, size, gpu, publish=sums.publish, name=model.name)
    classifier.warm_up()
    classifier.leave_costly()
    return classifier, classifier.metrics.count_requests


async def serve(
    make_app: Callable[[], App], listener: socket.socket, tell_ready: Callable[[], bool]
) -> None:
    """Answers requests until SIGTERM, then those in flight."""
    app = make_app()
    app.http = InheritedServer(listener, app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.http.stop)
    watch = asyncio.gather(app.look_after(), app.balance.run(), insist(tell_ready))
    # Granian answers the requests in flight before this returns.
    await app.http.serve()
    if app.is_ending:
        app.exit()
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    await asyncio.to_thread(app.service.close)
    app.write_series()


async def insist(tell: Callable[[], bool]) -> None:
    """Sends a report again until it is taken: it had no room while others waited to be read."""
    while not tell():
        await asyncio.sleep(TICK_S)


def choose_gpu(model: ServedModel, slot: int) -> int | None:
    """Returns the index of a worker's GPU, in turn as with TorchServe; None for the CPU."""
    ids = model.settings.device_ids
    gpus = list_gpus(model.settings.device_type, ids)
    turn = slot - (model.first_slot if ids else 0)
    return gpus[turn % len(gpus)] if gpus else None


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
