"""One TorchServe for many settings, which are registered in turn with fresh workers.

A server for each setting would be ten seconds slower each time, because Java compiles its hot code
for that long. Threads are no argument of the register API, and the workers of model-config.yaml
beat its argument, so each setting gets a copy of the archive with a model-config.yaml of its own.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import MANIFEST, MarFile, copy_mar, read_mar
from offpath.archive.model_config import (
    format_model_config,
    load_preset,
    make_model_config,
)
from offpath.errors import ExpectedError
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE
from offpath.handler.serving_settings import ServingSettings, name_keys
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.archives import NAME, build_offpath, host_preset
from offpath.profiling.servers.torchserve import RunningTorchServe
from offpath.serving.server.management import ManagementClient
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import make_server

# Names of the unchanged archive in the store, and of the copy with a setting.
BASE, COPY = "base.mar", "setting.mar"
CONFIG = "model-config.yaml"
# Time for all workers to start.
REGISTER_TIMEOUT_S = 600.0
POLL_S = 0.1


@dataclass(frozen=True)
class Setting:
    """The arguments that a model is registered with; `threads` is 0 if the handler is not ours."""

    batch_size: int
    max_batch_delay_ms: int
    workers: int
    threads: int

    def __str__(self) -> str:
        threads = f" x {self.threads} threads" if self.threads else ""
        return (
            f"batch {self.batch_size}, {self.max_batch_delay_ms} ms,"
            f" {self.workers} workers{threads}"
        )

    def put_into(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a copy of a model config with this setting, the inverse of `read_setting`."""
        changed = {
            **config,
            **name_keys(
                min_workers=self.workers,
                max_workers=self.workers,
                batch_size=self.batch_size,
                max_batch_delay_ms=self.max_batch_delay_ms,
            ),
        }
        if self.threads:
            changed["handler"] = {**(config.get("handler") or {}), "threads": self.threads}
        return changed


def read_setting(config: Mapping[str, Any], cores: int, has_our_handler: bool = True) -> Setting:
    """Returns the setting of a model config, with automatic threads as their number."""
    handler, serving = config.get("handler") or {}, ServingSettings.from_mapping(config)
    # handler/process/host_limits.py, threads_per_worker.
    threads = int(handler.get("threads") or 0) or max(1, cores // serving.workers)
    return Setting(
        batch_size=serving.batch_size,
        max_batch_delay_ms=serving.max_batch_delay_ms,
        workers=serving.min_workers,
        threads=threads if has_our_handler else 0,
    )


def prepare_archive(
    model: str | None, mar: Path | None, preset: str | None, store: Path
) -> tuple[MarFile, dict[str, Any]]:
    """Builds the archive of an embedded model, or copies the user's, into a store of its own.

    Without a preset, the host's is taken, or a .mar's own settings.

    Returns:
        the archive in the store, and the settings that others are compared with, as a preset.

    Raises:
        ExpectedError: there is no such model, archive or preset.
    """
    store.mkdir(parents=True)
    if mar is not None:
        own = read_mar(mar)
        settings = load_preset(preset) if preset else own.model_config
        settings = settings or load_preset(host_preset())
        make_model_config(settings, {}, {})
        shutil.copyfile(mar, store / BASE)
    else:
        settings = load_preset(preset or host_preset())
        under_test = load_model(model or "")
        config = make_model_config(settings, {}, under_test.source.handler)
        build_offpath(under_test, config.settings, store).rename(store / BASE)
    return read_mar(store / BASE), dict(settings)


class RegisteringServer:
    """A TorchServe that serves one setting at a time; a context manager.

    It starts with the unchanged archive, so that an archive that does not load fails at once. The
    prediction log is off, because the load is artificial.
    """

    def __init__(self, archive: MarFile) -> None:
        self._archive, self._store = archive, archive.path.parent
        self._server = make_server(
            ServerSettings(
                model_store=self._store,
                models=(f"{NAME}={archive.path.name}",),
                inference_port=0,
                management_port=0,
                metrics_port=0,
                log_dir=self._store / "logs",
                overrides={"enable_model_api": "true"},
                env={URI_VARIABLE: OFF},
            )
        )

    def __enter__(self) -> RegisteringServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def is_running(self) -> bool:
        return self._server.is_running()

    def serve(self, setting: Setting) -> tuple[RunningTorchServe, float]:
        """Registers a setting; returns the server and the seconds that fresh workers took.

        The workers stay until the next setting's turn.

        Raises:
            ExpectedError: the workers do not start, or the server uses another setting.
        """
        with ManagementClient(
            self._server.management_url, timeout_s=REGISTER_TIMEOUT_S
        ) as management:
            self._remove_all(management)
            self._write_copy(setting)
            begin_s = time.perf_counter()
            management.register(COPY, model_name=NAME, initial_workers=setting.workers)
            check_in_force(management, setting)
            ready_s = round(time.perf_counter() - begin_s, 2)
        return RunningTorchServe(self._server), ready_s

    def _write_copy(self, setting: Setting) -> None:
        config = setting.put_into(self._archive.model_config or {})
        manifest = dict(self._archive.manifest)
        manifest["model"] = {**manifest["model"], "configFile": CONFIG}
        changed = {MANIFEST: json.dumps(manifest), CONFIG: format_model_config(config)}
        content = {name: text.encode() for name, text in changed.items()}
        copy_mar(self._archive, self._store / COPY, content)

    def _remove_all(self, management: ManagementClient) -> None:
        for name in management.list_models():
            management.unregister(name)
        deadline_s = time.monotonic() + REGISTER_TIMEOUT_S
        while self._server.worker_pids() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def check_in_force(management: ManagementClient, setting: Setting) -> None:
    """Raises ExpectedError when the server uses another setting than it was told to."""
    status = management.describe(NAME)[0]
    wanted = (setting.batch_size, setting.max_batch_delay_ms, setting.workers)
    found = (status.batch_size, status.max_batch_delay_ms, status.ready_workers)
    if wanted != found:
        raise ExpectedError(
            "TorchServe does not use the setting: batch size, delay and ready workers are"
            f" {found}, expected {wanted}"
        )
