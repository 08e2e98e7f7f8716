"""Runs `offpath serve` without a front door: start, check, warm up, announce, watch, drain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import LABELS_CURE, NO_LABELS
from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError
from offpath.serving.client import Client, Prediction
from offpath.serving.granian.granian_server import GranianServer
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.process.interrupts import Hangup, noting_hangup
from offpath.serving.process.tmp_folders import FilesRemoved, check_exist
from offpath.serving.server.in_force import ENGINE_CURE, LOG, check_in_force, find_log_problem
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogFollower, LogLine
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.torchserve.torchserve_server import TorchServe

WATCH_S = 0.5
SERVERS: dict[str, type[Server]] = {"torchserve": TorchServe, "granian": GranianServer}


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

    def show_usage(self, inference_url: str, model_name: str, needs_token: bool = False) -> None:
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
    with noting_hangup() as hangup:
        while True:
            try:
                return _serve(settings, view, drain_s, hangup, sample=sample, once=once)
            except FilesRemoved as error:
                view.show_problem(str(error))


def _serve(
    settings: ServerSettings,
    view: View,
    drain_s: float,
    hangup: Hangup,
    *,
    sample: bool,
    once: bool,
) -> None:
    started = time.monotonic()
    server = make_server(settings)
    with ExitStack() as end:
        end.callback(server.stop)
        with view.waiting(f"starting {server.product} ..."):
            statuses = start_checked(server)
        show_gaps(server, statuses, view)
        urls = {**server.urls, "logs": str(server.log_path)}
        view.show_ready(urls, statuses, time.monotonic() - started)
        if sample:
            with Client(server.inference_url, model=server.model_names()[0]) as client:
                view.show_prediction(SAMPLE, client.try_predict(SAMPLE))
        if not once:
            view.show_usage(server.inference_url, server.model_names()[0])
            try:
                _watch(server, view, hangup)
            finally:
                _drain(server, view, drain_s)


def make_server(settings: ServerSettings) -> Server:
    if settings.server not in SERVERS:
        raise ExpectedError(f"server {settings.server!r} is none of {', '.join(SERVERS)}")
    return SERVERS[settings.server](settings)


def start_checked(server: Server) -> list[ModelStatus]:
    """Starts a server, checks and returns each model's settings in force, and warms it up.

    Raises:
        ExpectedError: the start or the check fails.
    """
    server.start()
    server.wait_until_ready()
    with server.management() as management:
        settings = server.settings
        statuses = check_in_force(server.archives, management, settings.allow_cpu, settings.lenient)
    server.warm_up(statuses)
    return statuses


def show_gaps(server: Server, statuses: Iterable[ModelStatus], view: View) -> None:
    """Shows which archives are not served, or without their engine, settings, labels or log."""
    ignored = ", ".join(server.list_ignored_keys())
    if ignored:
        view.show_problem(f"{server.settings.config}: {server.product} ignores {ignored}")
    view.show_unchecked([a.path.name for _, a in server.archives if not a.model_config])
    for _, archive in server.archives:
        if not archive.has_our_handler:
            text = f"{archive.path.name}: served as it is, not optimised"
            if archive.handler == "image_classifier":
                text += f"; `offpath archive --from {archive.path.name}` makes a faster one"
            view.show_problem(text)
        if archive.lacks_labels:
            view.show_problem(f"{archive.path.name}: {NO_LABELS}; {LABELS_CURE}")
    for status in statuses:
        for problem in find_log_problem(status):
            view.show_problem(f"{problem.area}: {LOG} {problem.found}; {problem.cure}")
        for reason in status.described.get("engines_lost", []):
            view.show_problem(
                f"{status.model_name} {status.model_version} runs {status.engine}: {reason};"
                f" {ENGINE_CURE}"
            )


def _watch(server: Server, view: View, hangup: Hangup) -> None:
    """Shows the errors that the server logs; raises ExpectedError when the server has ended."""
    follower = LogFollower(server.log_path)
    while True:
        with awaiting_descriptors(view.show_problem):
            if not server.is_running():
                raise ExpectedError(server.describe_end())
            check_exist(server.list_sockets())
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


def _drain(server: Server, view: View, drain_s: float) -> None:
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
