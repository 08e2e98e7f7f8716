"""TorchServes behind the door: what each is started with and must show to be let in."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import DEFAULT_RESPONSE_TIMEOUT_S
from offpath.handler.request.body_from_front_door import FOLDER_VARIABLE, KEY_VARIABLE
from offpath.serving.front.config import FrontPlace
from offpath.serving.front.door_settings import FrontSettings
from offpath.serving.front.upstream import Behind
from offpath.serving.mar_file import MarFile, read_archives
from offpath.serving.torchserve.properties import DEFAULTS
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_settings import (
    LOOPBACK,
    ServerSettings,
    read_config,
)

# A request may wait for one batch before its own, and a worker that starts anew.
WAITING_BATCHES = 2
STATES = Path("/proc/net/unix")
# What nginx.conf takes as a model's name.
MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
# include/uapi/linux/net.h: SS_CONNECTED.
CONNECTED = "03"


def look_behind(settings: ServerSettings, front: FrontSettings) -> Behind:
    """What the door has to know of a server to be started.

    Bodies go by name where every archive's handler takes them, and no other can come later over
    the model API.

    Raises:
        ExpectedError: an archive or the configuration cannot be read, or /invocations is asked for
            and there is not one model.
    """
    named = read_archives(settings.model_store, settings.models)
    archives = [archive for _, archive in named]
    properties = {**DEFAULTS, **read_config(settings), **settings.overrides}
    hand_over = not settings.enable_model_api and all(a.takes_names for a in archives)
    limit = int(properties["max_request_size"])
    own_queue = int(properties["job_queue_size"])
    return Behind(
        hand_over=hand_over,
        max_body_bytes=limit,
        answer_timeout_s=max(map(_response_timeout_s, archives)) * WAITING_BATCHES,
        # Bodies that Java holds are what its own length is for.
        queue=max(front.queue, own_queue) if hand_over else own_queue,
        only_model=_only_model([name for name, _ in named], front),
    )


def settings_behind(
    settings: ServerSettings, place: FrontPlace, behind: Behind, log: Path
) -> ServerSettings:
    """The settings of a server that only the door can reach."""
    env = dict(settings.env)
    if behind.hand_over:
        env.update({FOLDER_VARIABLE: str(place.bodies), KEY_VARIABLE: place.key})
    return replace(
        settings,
        host=LOOPBACK,
        unix_sockets=True,
        inference_port=0,
        management_port=None,
        metrics_port=0,
        log_dir=log,
        env=env,
        overrides={"job_queue_size": str(behind.queue), **settings.overrides},
    )


def has_ready_workers(server: TorchServe) -> bool:
    """Whether every model has a worker that takes requests."""
    try:
        with server.management() as management:
            return all(
                sum(status.ready_workers for status in management.describe(name)) > 0
                for name in server.model_names()
            )
    except ExpectedError:
        return False


def count_connections(socket: Path) -> int:
    """How many connections a listener on a Unix socket holds."""
    count = 0
    for line in STATES.read_text(encoding="utf-8", errors="replace").splitlines():
        # Num RefCount Protocol Flags Type St Inode Path
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[5] == CONNECTED and fields[7] == str(socket):
            count += 1
    return count


def turn_links(server: TorchServe, run: Path) -> None:
    """Leads the door to a server: a new connection goes there from now on."""
    for kind in ("inference", "management", "metrics"):
        socket = server.socket(kind)
        if socket is None:
            raise RuntimeError("a server behind the door listens on sockets")
        new = run / f"{kind}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(socket)
        os.replace(new, run / f"{kind}.sock")


def check_successor(old: Behind, new: Behind) -> None:
    """Refuses a server that needs another door.

    Raises:
        ExpectedError: it does not take bodies by name while its predecessor does, or its only
            model has another name.
    """
    if old.hand_over and not new.hand_over:
        raise ExpectedError(
            "the store now has an archive whose handler takes no bodies by name; build it again "
            "with `offpath archive`, or stop and start `offpath serve`"
        )
    if old.only_model != new.only_model:
        raise ExpectedError(
            f"/invocations leads to {old.only_model!r} and the store now has {new.only_model!r}; "
            "stop and start `offpath serve`"
        )


def _only_model(names: list[str], front: FrontSettings) -> str | None:
    """The model that /invocations stands for."""
    if not front.invocations:
        return None
    if len(names) != 1 or MODEL_NAME.fullmatch(names[0]) is None:
        raise ExpectedError(
            f"--invocations leads to the only model, and here are {', '.join(names)}; name one: "
            "`offpath serve NAME` (letters, digits and ._-)"
        )
    return names[0]


def _response_timeout_s(archive: MarFile) -> int:
    asked = (archive.model_config or {}).get("responseTimeout")
    return asked if isinstance(asked, int) and asked > 0 else DEFAULT_RESPONSE_TIMEOUT_S
