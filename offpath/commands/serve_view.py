"""Prints the events of `offpath serve`: results to standard output, the rest to standard error."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offpath.serving.client import Prediction
from offpath.serving.printable import printable
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.server_log import LogLine
from offpath.serving.session import View

READY = b"READY=1"


def notify_ready() -> None:
    """Sends READY to the socket that systemd has named, if it has named one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name that is no file
        address = f"\0{address[1:]}"
    # A server that cannot tell systemd serves all the same.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.sendto(READY, address)


class ServeView(View):
    """Shows events on the terminal, or with `as_json` as one JSON object per event."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json
        # An archive's texts must not be taken for markup.
        plain: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
        self._out, self._err = Console(**plain), Console(stderr=True, **plain)

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        return self._err.status(text)

    def show_ready(
        self,
        urls: Mapping[str, str],
        statuses: Sequence[ModelStatus],
        ready_s: float,
    ) -> None:
        notify_ready()
        if self._as_json:
            models = [asdict(status) for status in statuses]
            self._print_json(
                {
                    "event": "ready",
                    "ready_s": round(ready_s, 2),
                    **urls,
                    "models": models,
                }
            )
            return
        if statuses:
            self._out.print(_status_table(statuses))
        self._out.print(f"READY after {ready_s:.1f} s")
        for name, url in urls.items():
            self._out.print(f"  {name:<12} {url}")

    def show_plan(self, plan: Mapping[str, Any]) -> None:
        """Shows what would run."""
        content = json.loads(json.dumps(plan, default=str))  # with paths as text
        if self._as_json:
            self._print_json(content)
        else:
            self._out.print(yaml.safe_dump(content, sort_keys=False).rstrip())

    def show_prediction(self, photograph: Path, prediction: Prediction) -> None:
        if self._as_json:
            fields = ("status", "labels", "latency_ms", "server_timing", "request_id")
            answer = {name: getattr(prediction, name) for name in fields}
            self._print_json({"event": "prediction", "file": photograph.name, **answer})
            return
        self._out.print(f"\n{photograph.name}: {prediction.latency_ms:.1f} ms")
        for label, probability in prediction.labels:
            self._out.print(f"  {probability:6.1%}  {printable(label)}")
        stages = ", ".join(
            f"{stage} {duration_ms:.1f}" for stage, duration_ms in prediction.server_timing.items()
        )
        self._out.print(f"  stages, ms: {stages or 'not reported'}")

    def show_usage(self, inference_url: str, model_name: str, needs_token: bool = False) -> None:
        if self._as_json:
            return
        # A client cannot connect to 0.0.0.0.
        url = inference_url.replace("//0.0.0.0:", "//127.0.0.1:")
        header = "-H 'Authorization: Bearer TOKEN' " if needs_token else ""
        curl = f"curl {header}-T photo.jpg {url}/predictions/{model_name}"
        self._out.print(f"\n{curl}\nCtrl-C stops the server")

    def show_log_line(self, line: LogLine) -> None:
        self._err.print(f"{line.level} {line.logger}: {line.message}")

    def show_problem(self, text: str) -> None:
        self._err.print(text)

    def _print_json(self, value: object) -> None:
        self._out.print(json.dumps(value))


COLUMNS = ("workers", "batch", "delay", "time-outs")


def _status_table(statuses: Sequence[ModelStatus]) -> Table:
    table = Table(title="settings in force", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("model", "device", "engine"):
        table.add_column(heading, overflow="fold")
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for status in statuses:
        workers = str(status.min_workers)
        if status.max_workers != status.min_workers:
            workers = f"{status.min_workers}-{status.max_workers}"
        table.add_row(
            f"{status.model_name} {status.model_version}",
            status.device,
            status.engine,
            workers,
            str(status.batch_size),
            f"{status.max_batch_delay_ms} ms",
            # Time-outs of an answer and of a start.
            f"{status.response_timeout_s}, {status.startup_timeout_s} s",
        )
    return table
