"""Our server behind its front door, as `offpath serve --front` starts it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.servers import archives
from offpath.profiling.servers.put_store import Beside
from offpath.profiling.servers.torchserve import (
    RunningTorchServe,
    TorchServeAdapter,
    make_offpath_direct,
    why_no_granian,
)
from offpath.serving.front.behind import Behind
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.one_host import OneHostSession
from offpath.serving.front.several_hosts import SeveralHostsSession
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.session import View

# Free ports; all clients of a benchmark share one address.
DOOR = DoorSettings(port=0, metrics_port=0, client_connections=10_000)
# What a variant may change (`--variant NAME=offpath:front.KEY=VALUE`): three of DoorSettings, TLS,
# and the number of hosts on this machine behind `offpath front`.
FRONT_KEYS = ("buffer_bytes", "queue", "tls", "hosts")
# Group of the door's processes, which counts with the front end and is also shown alone.
NGINX = "nginx"
# `offpath front` before the hosts, without limits of its own.
HOSTS = Behind(False, 32 << 20, 240, 10_000)


class RunningBehindDoor(RunningTorchServe):
    """A ready TorchServe or Granian behind a door."""

    def __init__(self, server: TorchServe, door: Door, began_s: float | None) -> None:
        super().__init__(server, began_s=began_s)
        self._door = door
        self.predict_url = f"{door.url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        return {**super().groups(), NGINX: find_nginx_pids(self._door)}

    def is_running(self) -> bool:
        return super().is_running() and self._door.nginx.is_running()


class RunningHosts(RunningBehindDoor):
    """Ready hosts behind a common door; the group NGINX is only the common door's."""

    def __init__(self, door: Door, hosts: Sequence[RunningBehindDoor]) -> None:
        first = hosts[0]
        super().__init__(first.server, door, first.began_s)
        self._hosts = hosts

    def groups(self) -> Groups:
        groups: dict[str, list[int]] = {NGINX: find_nginx_pids(self._door)}
        for host in self._hosts:
            for name, pids in host.groups().items():
                name = "frontend" if name == NGINX else name
                groups[name] = [*groups.get(name, []), *pids]
        return groups

    def is_running(self) -> bool:
        return super().is_running() and all(h.is_running() for h in self._hosts)


def find_nginx_pids(door: Door) -> list[int]:
    return [door.nginx.pid, *door.nginx.worker_pids()]


@dataclass
class FrontDoorAdapter(TorchServeAdapter):
    """Our archive behind the front door; `front` has keys of FRONT_KEYS that differ from `DOOR`."""

    front: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        door = {f"front.{name}": value for name, value in self.front.items()}
        nginx = f"nginx {find_nginx().version_text}"
        return super().settings | {"front": nginx, **door}

    def why_not(self) -> str | None:
        try:
            find_nginx()
        except ExpectedError as error:
            return str(error)
        return super().why_not()

    @contextmanager
    def _start(self) -> Iterator[RunningBehindDoor]:
        with ExitStack() as stack:
            door = self._make_door(stack)
            count = int(self.front.get("hosts", 0))
            if not count:
                yield stack.enter_context(self._run(door))
                return
            hosts = [stack.enter_context(self._run(DOOR, n)) for n in range(count)]
            names = [urlsplit(host.predict_url).netloc for host in hosts]
            behind = replace(HOSTS, hosts=tuple(names))
            session = SeveralHostsSession(door, behind, View())
            stack.callback(session.stop)
            session.start()
            yield RunningHosts(session.door, hosts)

    @contextmanager
    def _run(self, door: DoorSettings, number: int = 0) -> Iterator[RunningBehindDoor]:
        began_s = time.perf_counter()
        settings = self._make_settings(Beside())
        logs = settings.model_store / f"logs-{number}"
        settings = replace(settings, log_dir=logs)
        session = OneHostSession(lambda _: settings, door, View())
        try:
            session.start()
            yield RunningBehindDoor(session.rotation.current, session.door, began_s)
        finally:
            session.stop()

    def _make_door(self, stack: ExitStack) -> DoorSettings:
        own = {k: v for k, v in self.front.items() if k not in ("tls", "hosts")}
        door = replace(DOOR, **own)
        if not self.front.get("tls"):
            return door
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate, key = write_certificate(folder)
        return replace(door, tls_cert=certificate, tls_key=key)


def write_certificate(folder: Path, name: str = "door") -> tuple[Path, Path]:
    """Writes a certificate for 127.0.0.1 and its key, valid for a day."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run([*command, *files], check=True, capture_output=True)
    except OSError as error:
        raise ExpectedError(f"front.tls needs openssl on the PATH: {error}") from error
    return certificate, key


def make_offpath(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The archive of `offpath-direct`, with nginx before TorchServe."""
    direct = make_offpath_direct(model, cores)
    return FrontDoorAdapter("offpath", direct.build, direct.archive_settings)


def make_offpath_granian(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The same archive with nginx before Granian."""
    return replace(
        make_offpath(model, cores),
        name="offpath-granian",
        server="granian",
        needs=why_no_granian,
    )
