"""From starting TorchServe to its end: check, warm up, announce, watch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.serving.client import Client
from offpath.serving.prediction import Prediction
from offpath.serving.process.in_flight import wait_until_answered
from offpath.serving.torchserve.in_force import check_in_force
from offpath.serving.torchserve.key_file import KeyFile
from offpath.serving.torchserve.management import ModelStatus
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_log import LogFollower, LogLine
from offpath.serving.torchserve.server_settings import LOOPBACK, ServerSettings
from offpath.serving.torchserve.warm_up import PHOTOGRAPH, warm_up

WATCH_S = 0.5
SHOWN_LEVELS = ("ERROR", "FATAL")


class View:
    """Whom `serve` tells what happens: nobody; the command line has one for the terminal."""

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        """Something takes its time."""
        return nullcontext()

    def show_ready(
        self, urls: Mapping[str, str], statuses: Sequence[ModelStatus], ready_s: float
    ) -> None:
        """What is in force, `ready_s` seconds after the start."""

    def show_unchecked(self, names: Sequence[str]) -> None:
        """Archives that hold no settings to compare with."""

    def show_prediction(self, photograph: Path, prediction: Prediction) -> None:
        """The sample's answer."""

    def show_usage(
        self, inference_url: str, model_name: str, keys: KeyFile | None = None
    ) -> None:
        """How to ask for a prediction, with which key, and how to stop."""

    def show_log_line(self, line: LogLine) -> None:
        """An error of the server while it serves."""

    def show_problem(self, text: str) -> None:
        """What happened to the server while it serves, and what follows from it."""


def serve(
    settings: ServerSettings,
    view: View,
    drain_s: float,
    *,
    sample: bool = False,
    once: bool = False,
) -> None:
    """Serves until interrupted, or with `once` until it was READY.

    Args:
        settings: what to start.
        view: told what happens.
        drain_s: how long what is in flight may still take at the end.
        sample: send the bundled photograph to the first model and show the answer.
        once: stop then.

    Raises:
        ExpectedError: the server does not start, does not serve as its archives ask, or ends by
            itself.
    """
    started = time.monotonic()
    server = TorchServe(settings)
    try:
        with view.waiting("starting TorchServe ..."):
            statuses = start_checked(server)
        view.show_unchecked(list_unchecked(server))
        view.show_ready(_urls(server), statuses, time.monotonic() - started)
        if sample:
            _show_sample(server, view)
        if not once:
            name = server.model_names()[0]
            view.show_usage(server.inference_url, name, server.keys())
            try:
                _watch(server, view)
            finally:
                _drain(server, view, drain_s)
    finally:
        server.stop()


def start_checked(server: TorchServe) -> list[ModelStatus]:
    """Starts a server, waits until it is READY, checks and warms it.

    Raises:
        ExpectedError: one of these fails.
    """
    server.start()
    server.wait_until_ready()
    with server.management() as management:
        allow_cpu = server.settings.allow_cpu
        statuses = check_in_force(server.archives, management, allow_cpu)
    token = server.read_token("inference")
    for (name, archive), status in zip(server.archives, statuses):
        if archive.has_our_handler:
            warm_up(
                server.inference_url,
                name,
                status.min_workers,
                token,
                server.socket("inference"),
                key=server.warm_up_key,
            )
    return statuses


def list_unchecked(server: TorchServe) -> list[str]:
    """Archives that hold no settings to compare with."""
    return [a.path.name for _, a in server.archives if not a.model_config]


def _show_sample(server: TorchServe, view: View) -> None:
    token = server.read_token("inference")
    headers = {"Authorization": f"Bearer {token}"} if token else None
    name = server.model_names()[0]
    with Client(server.inference_url, model=name, headers=headers) as client:
        view.show_prediction(PHOTOGRAPH, client.try_predict(PHOTOGRAPH))


def _watch(server: TorchServe, view: View) -> None:
    """Shows the log's errors until the server ends by itself, which is an error."""
    follower = LogFollower(server.log_path)
    while server.is_running():
        for line in follower.read_new():
            if line.level in SHOWN_LEVELS:
                view.show_log_line(line)
        time.sleep(WATCH_S)
    raise ExpectedError(
        f"TorchServe ended by itself; the log is {server.log_path}; it says:\n  "
        + "\n  ".join(server.last_words())
    )


def _drain(server: TorchServe, view: View, drain_s: float) -> None:
    """Waits for what is in flight. TorchServe's end would reset it, and nothing makes it accept no
    more before: the front door does."""
    try:
        with view.waiting("answering what is in flight ..."):
            is_done = wait_until_answered(server.ports.inference, drain_s)
    except OSError as error:
        view.show_problem(f"cannot see what is in flight, nothing waits: {error}")
        return
    if not is_done:
        view.show_problem(f"some requests took longer than --drain-s {drain_s:g}")


def _urls(server: TorchServe) -> dict[str, str]:
    urls = {
        "inference": server.inference_url,
        "management": server.management_url,
        "metrics": f"{server.metrics_url}/metrics",
    }
    if server.settings.grpc:  # else its ports end every handshake
        urls["grpc"] = f"{LOOPBACK}:{server.ports.grpc_inference}"
    return urls
