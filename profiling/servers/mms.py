"""Multi Model Server: TorchServe's ancestor, with batching by its management API."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, MAX_BATCH_DELAY_MS
from offpath.profiling.servers.environments import find_environment
from offpath.profiling.servers.launched import (
    Launch,
    ServerProcess,
    environment_path_variable,
    is_ok,
    launched,
    on_free_ports,
    server_environment,
)
from offpath.profiling.servers.models.mms_service import SETTINGS_FILE
from offpath.serving.java import find_java
from offpath.serving.ports import check_port_free
from offpath.serving.processes import find_workers
from offpath.serving.properties import format_properties

ENVIRONMENT = "mms"
REQUIREMENTS = (
    # Its other requirements (future, enum-compat) are for Python 2; psutil and Pillow are ours.
    "--no-deps",
    # The last release of each.
    "multi-model-server==1.1.11",
    "model-archiver==1.0.3",
)
LOOPBACK = "127.0.0.1"
NAME = "classifier"
SERVICE_FILE = Path(__file__).parent / "models" / "mms_service.py"
# Importing torch in the workers.
REGISTER_TIMEOUT_S = 180.0
LOW_PORTS = range(20_000, 32_000)


def choose_low_ports(count: int) -> list[int]:
    """Free ports that MMS accepts (Connector.java: a port is at most Short.MAX_VALUE).

    The kernel's own choice, as for other servers, lies above 32767.
    """
    ports: list[int] = []
    for port in random.sample(LOW_PORTS, len(LOW_PORTS)):
        with contextlib.suppress(ExpectedError):
            check_port_free(LOOPBACK, port, "another start")
            ports.append(port)
        if len(ports) == count:
            return ports
    raise ExpectedError(f"no free port from {LOW_PORTS[0]} to {LOW_PORTS[-1]} for mms")


class RunningMms:
    """A ready MMS; Java is its frontend, one Python process each its workers."""

    def __init__(self, server: ServerProcess, predict_url: str) -> None:
        self._server = server
        self.predict_url = predict_url

    def groups(self) -> Groups:
        """See `RunningServer`."""
        workers = find_workers(self._server.pid)
        members = [pid for group in self._server.groups().values() for pid in group]
        return {
            "frontend": [pid for pid in members if pid not in workers],
            "workers": workers,
        }

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return self._server.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._server.launch.log


@dataclass
class MmsUnderTest:
    """Multi Model Server with Pillow preprocessing, as its examples have it."""

    model: ModelUnderTest
    workers: int
    name: str = "mms"
    call: Call = field(default_factory=Call)
    batch_size: int = BATCH_SIZE
    threads: int = 1
    _folder: Path | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return {
            "version": "multi-model-server 1.1.11",
            "batch_size": self.batch_size,
            "max_batch_delay_ms": MAX_BATCH_DELAY_MS,
            "workers": self.workers,
            "threads": self.threads,
            "preprocessing": "pillow",
        }

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        if find_environment(ENVIRONMENT, REQUIREMENTS) is None:
            return "not set up here: offpath bench setup mms (20 MB)"
        try:
            find_java()
        except ExpectedError as error:
            return str(error)
        return None

    def prepare(self, folder: Path) -> None:
        """Builds the model archive by MMS's own archiver."""
        source, store = folder / "source", folder / "store"
        for path in (source, store, folder / "tmp"):
            path.mkdir(parents=True)
        shutil.copy(SERVICE_FILE, source)
        asked = {
            "kind": "pillow",
            "model": self.model.reference,
            "threads": self.threads,
            "max_batch": self.batch_size,
        }
        (source / SETTINGS_FILE).write_text(json.dumps(asked))
        command = [
            *(str(self._python()), "-m", "model_archiver.model_packaging"),
            *("--model-name", NAME, "--model-path", str(source)),
            *("--handler", f"{SERVICE_FILE.stem}:handle", "--runtime", "python"),
            *("--export-path", str(store), "--force"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=server_environment({})
        )
        if done.returncode:
            raise ExpectedError(f"model-archiver failed:\n{done.stderr.strip()}")
        self._folder = folder

    def running(self) -> AbstractContextManager[RunningMms]:
        """See `ServerUnderTest`."""
        return on_free_ports(self._start)

    @contextmanager
    def _start(self) -> Iterator[RunningMms]:
        if self._folder is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        inference, management = (
            f"http://{LOOPBACK}:{port}" for port in choose_low_ports(2)
        )
        config = self._folder / "config.properties"
        config.write_text(
            format_properties(
                {"inference_address": inference, "management_address": management}
            )
        )
        launch = Launch(
            self.name, self._command(config), self._folder / "mms.log", self._env()
        )
        with launched(launch, is_ok(f"{inference}/ping")) as server:
            self._register(server, management)
            yield RunningMms(server, f"{inference}/predictions/{NAME}")

    def _command(self, config: Path) -> list[str]:
        return [
            *(str(self._python()), "-m", "mms.model_server", "--start", "--foreground"),
            *("--mms-config", str(config)),
            *("--model-store", str(config.parent / "store")),
        ]

    def _env(self) -> dict[str, str]:
        if self._folder is None:
            raise RuntimeError("not prepared")
        # Its pid file, unpacked models and the workers' sockets: two MMS would meet in /tmp.
        temporary = str(self._folder / "tmp")
        return {
            "JAVA_HOME": str(find_java().home),
            "TMPDIR": temporary,
            "TEMP": temporary,
            "PATH": environment_path_variable(self._python()),
            "OMP_NUM_THREADS": str(self.threads),
        }

    def _register(self, server: ServerProcess, management: str) -> None:
        """Batching is set at registration and nowhere else.

        https://github.com/awslabs/multi-model-server/blob/master/docs/batch_inference_with_mms.md
        """
        reply = httpx.post(
            f"{management}/models",
            params={
                "url": f"{NAME}.mar",
                "batch_size": self.batch_size,
                "max_batch_delay": MAX_BATCH_DELAY_MS,
                "initial_workers": self.workers,
                "synchronous": "true",
            },
            trust_env=False,
            timeout=REGISTER_TIMEOUT_S,
        )
        if reply.status_code != 200:
            raise ExpectedError(
                f"server {self.name!r} refused the model with {reply.status_code}:"
                f" {reply.text[:300]}{server.last_words()}"
            )

    def _python(self) -> Path:
        python = find_environment(ENVIRONMENT, REQUIREMENTS)
        if python is None:
            raise RuntimeError(f"server {self.name!r} was prepared without setup")
        return python


def make_mms(model: ModelUnderTest, cores: int) -> MmsUnderTest:
    """One worker a core, one thread each."""
    return MmsUnderTest(model, cores)
