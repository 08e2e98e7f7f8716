"""The TorchServe that is profiled: one of our own or one that runs already, and its workers' calls.

Workers are profiled by a copy of the archive: `baselines/profiled_entry.py` stands in front of its
handler there, and the handler itself is unchanged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

import offpath
from offpath.archive.mar_file import MANIFEST, copy_mar, read_mar
from offpath.handler.errors import ExpectedError
from offpath.profiling.load.sampling import Groups
from offpath.profiling.profilers.call_profiler import merge_profiles, read_stats
from offpath.profiling.profilers.cprofile import make_samples, shorten_stats
from offpath.profiling.profilers.samples import FunctionSample, make_shortener
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.server_settings import CONF_DIR, ServerSettings

TIMEOUT_S = 30.0
METRICS_PORT, MANAGEMENT_PORT = 8082, 8081
# TorchServe's gauges keep only the last value. As histograms, they have sums and counts.
SUMMED_METRICS = {
    "ts_metrics": ("QueueTime",),
    "model_metrics": ("HandlerTime", "PredictionTime"),
}
ROOT = Path(offpath.__file__).parent
ENTRY = ROOT / "profiling" / "baselines" / "profiled_entry.py"
# Modules that the entry imports. They keep their names in the archive, so imports are the same.
STAGED = (
    "__init__.py",
    "profiling/__init__.py",
    "profiling/profilers/__init__.py",
    "profiling/profilers/call_profiler.py",
    "profiling/profilers/worker_threads.py",
)
# The entry's name inside the archive, which no user's handler has.
ENTRY_NAME = "offpath_profiled_entry.py"
# The same values as in profiled_entry.py, which imports no module of ours but STAGED.
ENTRY_SETTINGS = "profiled_handler.json"
FOLDER_VARIABLE = "OFFPATH_PROFILE_DIR"
WRITE_TIMEOUT_S = 20.0
POLL_S = 0.1


class ServedModel:
    """A model that answers. Implements `profiling.load.running_server.RunningServer`.

    Args:
        url: address of its server.
        server: None for a server that somebody else runs.
        in_force: batch_size, max_batch_delay_ms, workers; empty if the server does not tell.
    """

    def __init__(
        self,
        url: str,
        metrics_url: str,
        model: str,
        in_force: Mapping[str, Any],
        server: TorchServe | None = None,
    ) -> None:
        self.model, self.metrics_url, self.in_force = model, metrics_url, dict(in_force)
        self.predict_url = f"{url}/predictions/{model}"
        self._server = server

    def groups(self) -> Groups:
        """Returns process ids by group; none for a server that we did not start."""
        if self._server is None:
            return {}
        return {
            "frontend": [self._server.java_pid],
            "workers": self._server.worker_pids(),
        }

    def is_running(self) -> bool:
        """Tells whether our server runs. Another's failure shows when its metrics are read."""
        return self._server is None or self._server.is_running()

    def log_path(self) -> Path:
        return self._server.log_path if self._server else Path("its own")


@contextmanager
def start_server(archive: Path, folder: Path, env: Mapping[str, str]) -> Iterator[ServedModel]:
    """Serves one archive on free ports with our config.properties until the block ends.

    Args:
        folder: receives its logs and its metrics configuration.

    Raises:
        ExpectedError: it does not start, or the model does not load; with lines of the log.
    """
    metrics_config = folder / "metrics.yaml"
    metrics_config.write_text(summing_metrics_config(), encoding="utf-8")
    settings = ServerSettings(
        model_store=archive.parent,
        models=(archive.name,),
        inference_port=0,
        management_port=0,
        metrics_port=0,
        log_dir=folder / "logs",
        overrides={"metrics_config": str(metrics_config)},
        env=env,
    )
    with TorchServe(settings) as server:
        model = server.model_names()[0]
        with server.management() as management:
            in_force = describe(management, model)
        metrics_url = f"{server.metrics_url}/metrics"
        yield ServedModel(server.inference_url, metrics_url, model, in_force, server)


def summing_metrics_config() -> str:
    """Returns our metrics.yaml with SUMMED_METRICS as histograms instead of gauges."""
    config = yaml.safe_load((CONF_DIR / "metrics.yaml").read_text(encoding="utf-8"))
    for section, names in SUMMED_METRICS.items():
        gauges = config[section]["gauge"]
        moved = [metric for metric in gauges if metric["name"] in names]
        config[section]["gauge"] = [m for m in gauges if m not in moved]
        config[section].setdefault("histogram", []).extend(moved)
    return str(yaml.safe_dump(config, sort_keys=False))


def attach(
    url: str,
    metrics_url: str | None = None,
    management_url: str | None = None,
    model: str | None = None,
) -> ServedModel:
    """Returns a running server. Addresses default to TorchServe's ports on the same host.

    Raises:
        ExpectedError: nothing answers, or the server has several models and none was named.
    """
    url = url.rstrip("/")
    check_alive(url)
    metrics_url = (metrics_url or with_port(url, METRICS_PORT)).rstrip("/")
    if not metrics_url.endswith("/metrics"):
        metrics_url += "/metrics"
    management_url = management_url or with_port(url, MANAGEMENT_PORT)
    in_force: dict[str, Any] = {}
    with ManagementClient(management_url, timeout_s=TIMEOUT_S) as management:
        try:
            model = model or find_only_model(management)
            in_force = describe(management, model)
        except ExpectedError as error:
            # The management API often listens on the server's own loopback only.
            if model is None:
                raise ExpectedError(
                    f"cannot find out the model's name: {error}; name the model, or the"
                    " management address that `offpath serve` printed (unix:PATH)"
                ) from error
    return ServedModel(url, metrics_url, model, in_force)


def check_alive(url: str) -> None:
    """Raises ExpectedError if /ping is not answered, or with a status other than 200."""
    try:
        reply = httpx.get(f"{url}/ping", timeout=TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExpectedError(
            f"no server at {url!r}: {error}; start one with `offpath serve`, or give no address:"
            " then a server is started for the profile"
        ) from error
    if reply.status_code != 200:
        raise ExpectedError(
            f"the server at {url!r} answered {reply.status_code} to /ping:"
            f" {reply.text.strip()[:300]}"
        )


def check_answers(target: ServedModel, image: bytes) -> None:
    """Raises ExpectedError unless the model answers an image with 200."""
    try:
        reply = httpx.post(
            target.predict_url,
            content=image,
            headers={"Content-Type": "application/octet-stream"},
            timeout=TIMEOUT_S * 4,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise ExpectedError(f"no answer from {target.predict_url}: {error!r}") from error
    if reply.status_code != 200:
        raise ExpectedError(
            f"the model {target.model!r} answered {reply.status_code} to an image:"
            f" {reply.text.strip()[:300]}; the server's log is {target.log_path()}"
        )


def with_port(url: str, port: int) -> str:
    """Returns the URL's scheme and host with another port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def find_only_model(management: ManagementClient) -> str:
    """Returns the name of the only model of a server."""
    with only_torchserve():
        names = sorted(management.list_models())
    if len(names) != 1:
        raise ExpectedError(f"the server has {len(names)} models: {', '.join(names)}")
    return names[0]


def describe(management: ManagementClient, model: str) -> dict[str, Any]:
    """Returns the settings that are in force for a model's first version."""
    with only_torchserve():
        status = management.describe(model)[0]
    return {
        "batch_size": status.batch_size,
        "max_batch_delay_ms": status.max_batch_delay_ms,
        "workers": status.ready_workers,
    }


@contextmanager
def only_torchserve() -> Iterator[None]:
    """Turns the failure to read a reply into an ExpectedError: the user gave the address."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        raise ExpectedError(
            f"the management address is not that of a TorchServe: {error!r}"
        ) from error


def wrap_archive(archive: Path, target: Path) -> Path:
    """Writes a copy of `archive` with the profiling entry in front of its handler.

    Raises:
        ExpectedError: the file is no archive, or has no handler.
    """
    mar = read_mar(archive)
    if not mar.handler:
        raise ExpectedError(f"{archive} names no handler in its manifest")
    model = {**mar.manifest["model"], "handler": ENTRY_NAME}
    staged = {f"offpath/{name}": ROOT / name for name in STAGED}
    changed = {
        MANIFEST: json.dumps({**mar.manifest, "model": model}).encode(),
        ENTRY_NAME: ENTRY.read_bytes(),
        ENTRY_SETTINGS: json.dumps({"handler": mar.handler}).encode(),
        **{n: p.read_bytes() for n, p in staged.items() if n not in mar.names},
    }
    copy_mar(mar, target, changed)
    return target


@dataclass(frozen=True)
class WorkerProfiles:
    """The profiles that the workers wrote.

    Attributes:
        files: `<pid>.prof`, one for each worker that had batches.
        model_dir: the folder of the unzipped archive, which is the start of code objects' paths.
        doubts: sentences about missing profiles.
    """

    files: list[Path]
    model_dir: str
    doubts: list[str]

    def read_functions(self) -> list[FunctionSample]:
        """Returns the functions of all workers together."""
        stats = read_stats(merge_profiles([str(path) for path in self.files]))
        return make_samples(shorten_stats(stats, make_shortener(self.model_dir)))


@dataclass(frozen=True)
class WorkerProfiler:
    """The control files of a server with a wrapped archive."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables for the server."""
        return {FOLDER_VARIABLE: str(self.folder)}

    def start(self) -> None:
        """Makes each worker record from its next batch on, within a tenth of a second."""
        (self.folder / "start").touch()

    def stop(self, workers: int) -> WorkerProfiles:
        """Ends the recording and waits until the workers have written their profiles."""
        (self.folder / "stop").touch()
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        while len(self._done()) < workers and time.monotonic() < deadline:
            time.sleep(POLL_S)
        done, files = self._done(), sorted(self.folder.glob("*.prof"))
        doubts = []
        if len(done) < workers:
            doubts.append(
                f"{workers - len(done)} of {workers} workers wrote no profile in"
                f" {WRITE_TIMEOUT_S:.0f} s: they died, or one batch took that long"
            )
        elif len(files) < workers:
            doubts.append(
                f"{workers - len(files)} of {workers} workers had no batch while recording"
            )
        return WorkerProfiles(files, done[0].read_text() if done else "", doubts)

    def _done(self) -> list[Path]:
        return sorted(self.folder.glob("*.done"))
