"""The TorchServe that is profiled: one of our own, or one that runs already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.sampling import Groups
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
    """Serves one archive on free ports with our config.properties; `folder` gets its logs.

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
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def find_only_model(management: ManagementClient) -> str:
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
