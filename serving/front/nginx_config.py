"""Writes nginx's configuration: conf/nginx.conf, a rendering of a door and its servers' plan."""

from __future__ import annotations

import functools
import grp
import json
import os
import pwd
import re
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offpath.errors import WrongOption
from offpath.handler import wire_names
from offpath.handler.error_kinds import (
    BUSY,
    MODEL_GONE,
    OF_DOOR,
    RETRY_AFTER_S,
    WORKER_DIED,
    ErrorKind,
)
from offpath.handler.process.host_limits import count_cores
from offpath.serving.front.door_settings import CONF, DoorPlace, DoorSettings
from offpath.serving.front.openapi import OPENAPI, render_openapi
from offpath.serving.front.upstreams import MODEL_NAME, Upstreams
from offpath.serving.process.ports import WRONG_HOST, is_loopback
from offpath.serving.rotation import KEEPALIVE_S
from offpath.serving.server.properties import CONF_DIR
from offpath.serving.server.served_model import name_socket
from offpath.serving.service.messages import V2_SERVER, describe_missing

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = CONF_DIR / CONF
TOKENS_MAP = "tokens.map"
MODELS = "models.json"
DEMO = "demo"
# A line for each reply, and the metrics that are made of them (reply_counts.py).
REPLIES = "replies.log"
DOOR_METRICS = "door.prom"
# Paths that need no quoting in the configuration, and what quotes do not protect.
PLAIN_PATH = re.compile(r"[\w/.,+:@=-]+")
NOT_QUOTED = set('"\\$;{}')

# Sizes of bodies in nginx.conf's map, and the bytes of the largest. Each size may take a quarter of
# the memory. The last quarter is for smaller bodies, which only the queue limits.
SIZES = {"small": 500_000, "medium": 4_000_000, "large": None}
# nginx accepts no higher limit. A tmpfs of 256 GB, half of a host's memory, has room for more.
MAX_BODIES = 65535
# What the door says itself, by status.
ERRORS = {kind.status: kind for kind in OF_DOOR}
# The copies that one shadow may hold at a time, and with them their bodies: 64 MB of medium ones.
COPIES = 16


@dataclass(frozen=True)
class DoorPlan:
    """A door as nginx.conf describes it, before the servers that `Upstreams` plans."""

    place: DoorPlace
    settings: DoorSettings
    has_http2: bool = False

    @property
    def user(self) -> str:
        """Keeps root's nginx from running its workers as a user who could not own the bodies."""
        if os.getuid() != 0:
            return ""
        return f"{pwd.getpwuid(0).pw_name} {grp.getgrgid(os.getgid()).gr_name}"

    @property
    def max_files(self) -> int:
        """Files that each worker may open."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    @property
    def copies(self) -> int:
        """Copies that its shadows may hold at a time."""
        return COPIES * len(self.settings.shadow)

    def list_servers(self, plan: Upstreams) -> dict[str, list[str]]:
        """Returns the `server` lines of each upstream: a server, a model's workers, a shadow."""

        def link(slot: int) -> str:
            return f"unix:{self.place.run}/{plan.name_link(name_socket(slot))}"

        servers = {}
        if not plan.routes:
            # A link that a reload points at another TorchServe. No more requests than its queue
            # holds: the door refuses the rest, because TorchServe's refusal has a misleading text.
            servers["torchserve"] = [f"unix:{self.place.run}/inference.sock max_conns={plan.queue}"]
        for model in plan.routes:
            # A link for each worker, and no more requests for it than it takes. The path of one
            # that is being replaced leads to another one.
            limits = f"max_conns={model.share_queue(plan.queue)} max_fails=0"
            servers[f"granian_{model.first_slot}"] = [
                f"{link(slot)} {limits}" for slot in model.slots
            ]
        for number, split in enumerate(self.settings.shadow):
            links = [
                link(slot)
                for model in plan.routes
                if (model.name, model.version) == (split.model, split.version)
                for slot in model.slots
            ] or [f"unix:{self.place.run}/inference.sock"]
            limits = f"max_conns={-(-COPIES // len(links))} fail_timeout=10s"
            # No copies for ten seconds after one without a reply. nginx needs a second server for
            # that.
            servers[f"shadow_{number}"] = [
                *(f"{it} {limits}" for it in links),
                f"unix:{self.place.run}/none down",
            ]
        return servers

    def count_bodies(self, plan: Upstreams) -> dict[str, tuple[int, int]]:
        """Returns for each size how many bodies one client and all clients may have at a time.

        One client gets as large a share of the memory as `client_connections` is of the queue.
        Requests that wait for their copy come on top, except with large bodies, which are not
        copied.
        """
        share = min(1.0, self.settings.client_connections / plan.queue)
        counts = {}
        for size, largest in SIZES.items():
            bytes_each = min(largest or plan.max_body_bytes, plan.max_body_bytes)
            in_all = max(1, self.place.room_bytes // (len(SIZES) + 1) // bytes_each)
            extra = self.copies if largest is not None else 0
            of_one, of_all = max(1, int(in_all * share)) + extra, in_all + extra
            counts[size] = min(MAX_BODIES, of_one), min(MAX_BODIES, of_all)
        return counts


def write_config(door: DoorPlan, plan: Upstreams, tokens: Sequence[str] = ()) -> Path:
    """Writes nginx.conf and the files it includes, mode 0600 because they hold secrets."""
    run = door.place.run
    busy = BUSY._replace(status=door.settings.busy_status)
    text = _compile(TEMPLATE).render(door=door, plan=plan, busy=busy)
    new_tokens = _write_new(run / TOKENS_MAP, _format_tokens(tokens))
    _write_new(door.place.config, text).replace(door.place.config)
    new_tokens.replace(run / TOKENS_MAP)
    # Copies, because nginx cannot use every path that a package may be installed at.
    if not (run / OPENAPI).exists():
        _write_new(run / OPENAPI, render_openapi()).replace(run / OPENAPI)
    for page in door.settings.pages:
        (run / DEMO).mkdir(exist_ok=True)
        # Pages never change, and a copy to a full disk would only empty the file.
        if not (run / DEMO / page.name).exists():
            shutil.copy(page, run / DEMO)
    return door.place.config


def write_models(run: Path, names: Sequence[str]) -> Path:
    """Writes the next reply to GET /models, which is in force when it replaces `MODELS`."""
    models = [{"modelName": name} for name in names]
    return _write_new(run / MODELS, json.dumps({"models": models}))


def _format_tokens(tokens: Sequence[str]) -> str:
    """Returns the lines of nginx's map from the Authorization header to 1, one per token."""
    # Plain strings of a map ignore case; a pattern with `~` does not.
    return "".join(f'"~^[Bb]earer {re.escape(token)}$" 1;\n' for token in tokens)


@functools.cache
def _compile(path: Path) -> Template:
    # Imported here, because most commands that import this module render nothing.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.globals.update(
        cores=count_cores,
        errors=ERRORS,
        died=WORKER_DIED,
        gone=MODEL_GONE,
        missing=describe_missing,
        names=wire_names,
        retry_after_s=RETRY_AFTER_S,
        keepalive_s=KEEPALIVE_S,
        server_of_v2=V2_SERVER,
        wrong_host=WRONG_HOST,
    )
    environment.filters.update(literal=re.escape, json=json.dumps, reply=_format_reply)
    environment.filters.update(plain=_check_plain, quoted=_quote)
    environment.tests.update(loopback=is_loopback, nameable=MODEL_NAME.fullmatch)
    return environment.from_string(path.read_text(encoding="utf-8"))


def _format_reply(kind: ErrorKind, text: str = "") -> str:
    body = json.dumps({"code": kind.status, "type": kind.type, "message": text or kind.text})
    body = body.replace("'", "\\'")
    return f"set $offpath_error {kind.type}; return {kind.status} '{body}';"


def _check_plain(path: Path) -> str:
    return _check(path, PLAIN_PATH.fullmatch(str(path)) is not None)


def _quote(path: Path) -> str:
    return f'"{_check(path, str(path).isprintable() and not set(str(path)) & NOT_QUOTED)}"'


def _check(path: Path, is_usable: bool) -> str:
    if not is_usable:
        raise WrongOption(
            f"nginx cannot use the path {str(path)!r}; choose one without quotes, $, ; and braces"
        )
    return str(path)


def _write_new(path: Path, text: str) -> Path:
    """Writes a file to replace another, which nginx may read at any time, at once."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return new
