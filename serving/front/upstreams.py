"""The servers behind the front door: their plan, and the links to them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from offpath.errors import ExpectedError
from offpath.handler.wire_names import FOLDER_VARIABLE, KEY_VARIABLE
from offpath.serving.front.door_settings import DoorPlace, DoorSettings
from offpath.serving.front.splits import check_splits
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.served_model import WORKER, ServedModel
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import LOOPBACK
from offpath.serving.service.messages import Served, list_served

# A request may wait for one batch before its own, or for a worker that restarts.
WAITING_BATCHES = 2
# Model names that nginx.conf accepts.
MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Upstreams:
    """The servers behind a door, as far as its configuration depends on them.

    Attributes:
        hand_over: every archive's handler accepts the name of a body's file instead of the body.
        max_body_bytes: the server's limit.
        answer_timeout_s: seconds that an answer may take.
        queue: requests that the server may hold.
        only_model: the model that /invocations leads to; None closes /invocations.
        routes: the models, where each has sockets of its own (`ServePlan.routes`).
        generation: number of times that `routes` has changed. Each time, the links to workers get
            new names, so that an nginx process with the old configuration finds the old workers.
    """

    hand_over: bool
    max_body_bytes: int
    answer_timeout_s: int
    queue: int
    only_model: str | None = None
    routes: tuple[ServedModel, ...] = ()
    generation: int = 0

    @property
    def served(self) -> Served:
        """The models and versions that the door's paths can name."""
        served = list_served((model.name, model.version) for model in self.routes)
        can_name = MODEL_NAME.fullmatch
        return {one: list(filter(can_name, served[one])) for one in served if can_name(one)}

    def name_link(self, socket: str) -> str:
        return f"{self.generation}-{socket}" if socket.startswith(WORKER) else socket


def plan_upstreams(plan: ServePlan, door: DoorSettings) -> Upstreams:
    """Plans what a door has to know about a server.

    Bodies go by name to Granian, and to TorchServe if every archive's handler accepts that and no
    other archive can be registered later over the model API.

    Raises:
        ExpectedError: /invocations is asked for and there is not exactly one model, or a canary or
            shadow fits no archive.
    """
    check_splits(door.splits, plan.models)
    has_model_api = plan.properties.given.get("enable_model_api") == "true"
    # Only our handler takes the name of a body's file.
    all_take_names = not has_model_api and all(model.is_ours for model in plan.models)
    hand_over = plan.is_granian or all_take_names
    timeout_s = max(model.settings.response_timeout_s for model in plan.models)
    return Upstreams(
        hand_over=hand_over,
        max_body_bytes=plan.properties.max_request_size,
        answer_timeout_s=timeout_s * WAITING_BATCHES,
        # TorchServe's own queue length is meant for bodies in Java's heap; names take no room.
        queue=max(door.queue, plan.properties.job_queue_size) if hand_over else plan.queue,
        only_model=_only_model(plan.names, door),
        routes=plan.routes,
    )


def put_behind_door(
    plan: ServePlan, place: DoorPlace, upstreams: Upstreams, log: Path
) -> ServePlan:
    """Returns the plan of a server that only the door can reach."""
    env = dict(plan.settings.env)
    if upstreams.hand_over:
        env.update({FOLDER_VARIABLE: str(place.bodies), KEY_VARIABLE: place.key})
    settings = replace(
        plan.settings,
        host=LOOPBACK,
        unix_sockets=True,
        inference_port=0,
        management_port=None,
        metrics_port=0,
        log_dir=log,
        env=env,
    )
    has_own = "job_queue_size" in settings.overrides
    return replace(plan, settings=settings, queue=plan.queue if has_own else upstreams.queue)


def point_links(server: Server, run: Path, upstreams: Upstreams) -> None:
    """Points the door's links at a server: every new connection by them goes there from now on.

    Raises:
        OSError: the disk is full; no link has changed.
    """
    links = {}
    for name, socket in server.links().items():
        link = run / upstreams.name_link(name)
        new = link.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(socket)
        links[new] = link
    for new, link in links.items():
        os.replace(new, link)
    for link in run.glob("*.sock"):
        if not link.resolve().parent.exists():  # its server has ended
            link.unlink()


def check_successor(old: Upstreams, new: Upstreams) -> None:
    """Refuses a new server that the running door's configuration does not fit.

    Raises:
        ExpectedError: the new server does not accept bodies by name though the old one does, or
            its only model has another name.
    """
    if old.hand_over and not new.hand_over:
        raise ExpectedError(
            "the model store now has an archive that cannot read bodies from the front door; build "
            "it again with `offpath archive`, or restart `offpath serve`"
        )
    if old.only_model != new.only_model:
        raise ExpectedError(
            f"/invocations leads to {old.only_model!r}, but the model store now has "
            f"{new.only_model!r}; restart `offpath serve`"
        )


def _only_model(names: list[str], door: DoorSettings) -> str | None:
    if not door.invocations:
        return None
    if len(names) != 1 or MODEL_NAME.fullmatch(names[0]) is None:
        raise ExpectedError(
            f"--invocations needs exactly one model, named with letters, digits and ._-; the "
            f"models here are {', '.join(names)}; choose one with `offpath serve NAME`"
        )
    return names[0]
