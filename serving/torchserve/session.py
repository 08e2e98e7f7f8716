"""Runs `offpath serve` without a front door: start, check, warm up, announce, watch, drain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import LABELS_CURE, NO_LABELS
from offpath.archive.photographs import BUNDLED
from offpath.errors import ExpectedError
from offpath.handler.wire_names import WARM_UP_HEADER
from offpath.serving.client import Client, Prediction
from offpath.serving.granian.server import GranianServer
from offpath.serving.process.interrupts import Hangup, noting_hangup
from offpath.serving.torchserve.in_force import ENGINE_CURE, check_in_force
from offpath.serving.torchserve.management import UNIX, ModelStatus, open_http
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_log import LogFollower, LogLine
from offpath.serving.torchserve.server_settings import LOOPBACK, ServerSettings

WATCH_S = 0.5
PHOTOGRAPH = BUNDLED / "espresso.jpg"
# After this many, the first request after READY costs the same as later ones.
WARM_UP_PER_WORKER = 20
WARM_UP_CLIENTS = 8
WARM_UP_TIMEOUT_S = 60.0


class View:
    """Receives the events of a serving session and ignores them; a subclass shows them."""

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        """Returns a context that is open while something takes long."""
        return nullcontext()

    def show_ready(
        self,
        urls: Mapping[str, str],
        statuses: Sequence[ModelStatus],
        ready_s: float,
    ) -> None:
        """Shows the settings in force, `ready_s` seconds after the start."""

    def show_unchecked(self, names: Sequence[str]) -> None:
        """Shows which archives have no settings to compare with those in force."""

    def show_prediction(self, photograph: Path, prediction: Prediction) -> None:
        """Shows the answer to the sample."""

    def show_usage(self, inference_url: str, model_name: str) -> None:
        """Shows how to ask for a prediction and how to stop."""

    def show_log_line(self, line: LogLine) -> None:
        """Shows an error that the server has logged."""

    def show_problem(self, text: str) -> None:
        """Shows what has happened to the server, and the consequence."""


def serve(
    settings: ServerSettings,
    view: View,
    drain_s: float,
    *,
    sample: bool = False,
    once: bool = False,
) -> None:
    """Serves until interrupted; `sample` and `once` are those of `one_host.serve_behind_door`.

    Args:
        drain_s: seconds that requests in flight may take at the end.

    Raises:
        ExpectedError: the server does not start, does not serve as its archives ask, or ends by
            itself.
    """
    started = time.monotonic()
    server = make_server(settings)
    with noting_hangup() as hangup, ExitStack() as end:
        end.callback(server.stop)
        with view.waiting(f"starting {server.product} ..."):
            statuses = start_checked(server)
        show_gaps(server, statuses, view)
        view.show_ready(_urls(server), statuses, time.monotonic() - started)
        if sample:
            with Client(server.inference_url, model=server.model_names()[0]) as client:
                view.show_prediction(PHOTOGRAPH, client.try_predict(PHOTOGRAPH))
        if not once:
            view.show_usage(server.inference_url, server.model_names()[0])
            try:
                _watch(server, view, hangup)
            finally:
                _drain(server, view, drain_s)


def make_server(settings: ServerSettings) -> TorchServe:
    if settings.server == "granian":
        return GranianServer(settings)
    return TorchServe(settings)


def start_checked(server: TorchServe) -> list[ModelStatus]:
    """Starts a server, checks and returns each model's settings in force, and warms it up.

    Raises:
        ExpectedError: the start or the check fails.
    """
    server.start()
    server.wait_until_ready()
    with server.management() as management:
        allow_cpu = server.settings.allow_cpu
        statuses = check_in_force(server.archives, management, allow_cpu)
    if isinstance(server, GranianServer):
        return statuses  # its workers are warm before they are READY
    for (name, archive), status in zip(server.archives, statuses):
        if archive.has_our_handler:
            warm_up(
                server.inference_url,
                f"{name}/{archive.model_version}",
                status.min_workers,
                server.socket("inference"),
                key=server.warm_up_key,
            )
    return statuses


def warm_up(
    inference_url: str,
    model_name: str,
    workers: int,
    socket: Path | None = None,
    key: str | None = None,
) -> None:
    """Sends a model photographs, several at a time so that batches form and all workers run.

    The workers warm up their models themselves. At READY, Java's request path is still cold,
    because it runs interpreted for its first requests, and no worker has had a real batch yet.
    The metrics count these requests. The prediction log leaves out those that carry the server's
    `key` (`TorchServe.warm_up_key`). Failures are not reported: the first real request shows them.
    """
    headers = {WARM_UP_HEADER: key} if key else {}
    body = PHOTOGRAPH.read_bytes()
    path = f"/predictions/{model_name}"
    url = f"{UNIX}{socket}" if socket else inference_url
    with open_http(url, headers=headers, timeout=WARM_UP_TIMEOUT_S) as client, ThreadPoolExecutor(
        WARM_UP_CLIENTS
    ) as pool:
        list(
            pool.map(lambda _: client.post(path, content=body), range(workers * WARM_UP_PER_WORKER))
        )


def show_gaps(server: TorchServe, statuses: Iterable[ModelStatus], view: View) -> None:
    """Shows which archives are not served, or without their engine, settings or labels."""
    view.show_unchecked([a.path.name for _, a in server.archives if not a.model_config])
    for _, archive in server.archives:
        if archive.lacks_labels:
            view.show_problem(f"{archive.path.name}: {NO_LABELS}; {LABELS_CURE}")
    for status in statuses:
        for reason in status.described.get("engines_lost", []):
            view.show_problem(
                f"{status.model_name} {status.model_version} runs {status.engine}: {reason};"
                f" {ENGINE_CURE}"
            )


def _watch(server: TorchServe, view: View, hangup: Hangup) -> None:
    """Shows the errors that the server logs; raises ExpectedError when the server has ended."""
    follower = LogFollower(server.log_path)
    while server.is_running():
        for line in follower.read_new():
            if line.is_shown:
                view.show_log_line(line)
        server.rotate_log()
        if hangup.take():
            view.show_problem(
                "SIGHUP is ignored: a reload without losing requests needs "
                "`offpath serve --front`"
            )
        time.sleep(WATCH_S)
    raise ExpectedError(server.describe_end())


def _drain(server: TorchServe, view: View, drain_s: float) -> None:
    try:
        with view.waiting("answering requests in flight ..."):
            is_done = server.drain(drain_s)
    except OSError as error:
        view.show_problem(
            f"cannot count the requests in flight, so they are not waited for: {error}"
        )
        return
    if not is_done:
        view.show_problem(f"some requests were not answered within --drain-s {drain_s:g}")


def _urls(server: TorchServe) -> dict[str, str]:
    urls = {
        "inference": server.inference_url,
        "management": server.management_url,
        "metrics": f"{server.metrics_url}/metrics",
    }
    if server.settings.grpc_port is not None:
        urls["grpc"] = f"{LOOPBACK}:{server.ports.grpc_inference}"
    return urls
