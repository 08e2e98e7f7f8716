"""`offpath demo`: a model behind the front door, with a page to try it in a browser."""

from __future__ import annotations

import contextlib
import os
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from offpath.archive.mar_file import read_mar
from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.serve_options import PORT, choose_log_dir
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import MODEL_STORE, SERVERS
from offpath.errors import WrongOption
from offpath.serving.front.door_settings import DoorSettings, settle_ports
from offpath.serving.front.nginx import find_nginx
from offpath.serving.process.interrupts import Terminated, noting_hangup, stopping_on_signals
from offpath.serving.server.model_store import find_models
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import Session, serve

STORE = Path(".offpath/demo")
NO_LOG = {"OFFPATH_PREDICTION_LOG": "off"}
PACKAGE = Path(__file__).parents[1]
# Variables that say that a browser can show something.
SCREENS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


@click.command("demo")
@takes_options
def command(
    archive: str | None = argument("[PATH.mar|NAME]", required=False),
    port: int = option(
        "Port of the page and of predictions, on loopback; 0 takes a free one.",
        type=PORT,
        default=DoorSettings.port,
    ),
    server: str = option(
        "Server behind the front door. granian needs no Java.", type=SERVERS, default="torchserve"
    ),
) -> None:
    """Try a model in a browser, until Ctrl-C.

    Serves an archive (a NAME is looked up in .offpath/model-store) or the embedded model behind the
    front door, on loopback only and without a prediction log, and opens a page. Drop an image on
    the page to see its labels and where the time of its request went; a button sends 200 requests
    and draws their latency. The first start with the embedded model builds its archive in
    .offpath/demo, which takes half a minute.

    \b
    From another machine: ssh -L 8080:127.0.0.1:8080 HOST, then open http://127.0.0.1:8080/ there.
    """
    from offpath.archive.photographs import BUNDLED

    pages = (*PACKAGE.glob("serving/demo/*"), *BUNDLED.glob("*.jpg"))
    # 32 MB of memory for the bodies are enough for one browser, and a container has 64 MB.
    door = settle_ports(
        DoorSettings(port=port, metrics_port=0, front_bodies=1, invocations=True, pages=pages)
    )
    find_nginx()
    view = DemoView()
    try:
        with stopping_on_signals(), noting_hangup() as hangup:
            if archive is None:
                make_archive(view)
            store = STORE if archive is None else MODEL_STORE
            store, models = find_models(store, () if archive is None else (archive,), STORE)
            log_dir = choose_log_dir(None, port)
            settings = ServerSettings(store, models, server=server, log_dir=log_dir, env=NO_LOG)

            def make_settings(kind: str | None) -> ServerSettings:
                return replace(settings, server=kind or server)

            serve(Session(make_settings, view, hangup, door), view)
    except Terminated:
        click.echo("stopped", err=True)


def make_archive(view: ServeView) -> None:
    """Builds the embedded model's archive, unless there is one that can be served."""
    from offpath.commands import archive

    with contextlib.suppress(WrongOption):
        read_mar(STORE / "classifier.mar")
        return
    with view.waiting("building the model's archive, half a minute ..."):
        click.get_current_context().invoke(archive.command, output=STORE, force=True)


class DemoView(ServeView):
    """Shows the address of the page, and opens it in a browser if there is a screen."""

    def show_ready(
        self,
        urls: Mapping[str, str],
        statuses: Sequence[Any],
        ready_s: float,
    ) -> None:
        click.echo(f"READY after {ready_s:.1f} s: {urls['inference']}/")

    def show_usage(self, inference_url: str, *_: object) -> None:
        click.echo("Ctrl-C stops the demo")
        if any(map(os.environ.get, SCREENS)):
            # In a thread, because some browsers return only when they are closed.
            page = f"{inference_url}/"
            threading.Thread(target=webbrowser.open, args=[page], daemon=True).start()
