"""Multi Model Server: TorchServe's ancestor, with batching set through its management API.

Its custom service is this module's `handle`, see
https://github.com/awslabs/multi-model-server/blob/master/docs/custom_service.md
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpath.errors import ExpectedError
from offpath.profiling.servers.adapter import (
    MAX_BATCH_DELAY_MS,
    PackagedAdapter,
    ServiceSettings,
    Start,
)
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_process import (
    ServerProcess,
    server_environment,
)
from offpath.serving.process.processes import WORKER_SCRIPT
from offpath.serving.torchserve.launch import find_java
from offpath.serving.torchserve.properties import format_properties

if TYPE_CHECKING:
    from offpath.profiling.servers.classifiers import Classify, Labels

MODEL = "classifier"
# The module's name in the archive; `mms` would hide the server's own package.
SERVICE = "service"
# The workers import torch meanwhile.
REGISTER_TIMEOUT_S = 180.0

_classify: Classify | None = None


class Mms(PackagedAdapter):
    """MMS with one worker per core, and Pillow preprocessing as its examples have it."""

    name = "mms"
    environment = Environment(
        "mms",
        (
            # Its other requirements (future, enum-compat) are for Python 2; psutil and Pillow are
            # shared with ours.
            "--no-deps",
            # The last release of each.
            "multi-model-server==1.1.11",
            "model-archiver==1.0.3",
        ),
        size_mb=20,
    )
    predict_path, ready_path = f"/predictions/{MODEL}", "/ping"
    worker_mark = WORKER_SCRIPT
    # The second port is the management API's.
    port_count = 2

    def why_not(self) -> str | None:
        try:
            find_java()
        except ExpectedError as error:
            return super().why_not() or str(error)
        return super().why_not()

    def build(self, folder: Path) -> None:
        # By MMS's own archiver.
        source, store = folder / "source", folder / "store"
        source.mkdir()
        store.mkdir()
        shutil.copy(__file__, source / f"{SERVICE}.py")
        command = [
            *(str(self.find_python()), "-m", "model_archiver.model_packaging"),
            *("--model-name", MODEL, "--model-path", str(source)),
            *("--handler", f"{SERVICE}:handle", "--runtime", "python"),
            *("--export-path", str(store), "--force"),
        ]
        environ = server_environment({})
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        if done.returncode:
            raise ExpectedError(f"model-archiver failed:\n{done.stderr.strip()}")

    def make_command(self, start: Start) -> list[str]:
        addresses = {
            "inference_address": start.url(),
            "management_address": start.url(port=1),
        }
        config = start.folder / "config.properties"
        config.write_text(format_properties(addresses))
        return [
            *(str(start.python), "-m", "mms.model_server", "--start", "--foreground"),
            *("--mms-config", str(config)),
            *("--model-store", str(start.folder / "store")),
        ]

    def make_environment(self, start: Start) -> dict[str, str]:
        # For its pid file, unpacked models and the workers' sockets: two MMS would meet in /tmp.
        return super().make_environment(start) | {
            "JAVA_HOME": str(find_java().home),
            "TEMP": str(start.scratch),
        }

    def finish_start(self, start: Start, process: ServerProcess) -> None:
        """Registers the model, which is the only place where batching is set.

        https://github.com/awslabs/multi-model-server/blob/master/docs/batch_inference_with_mms.md
        """
        # Imported here: the workers do not need it.
        import httpx

        reply = httpx.post(
            start.url("/models", port=1),
            params={
                "url": f"{MODEL}.mar",
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
                f" {reply.text[:300]}{process.quote_log()}"
            )


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Labels]:
    """Classifies a batch in an MMS worker; the first call, with None, is for loading."""
    global _classify
    if _classify is None:
        _classify = ServiceSettings.from_environment().load_classifier()
    if data is None:
        return []
    return _classify([bytes(row.get("data") or row["body"]) for row in data])
