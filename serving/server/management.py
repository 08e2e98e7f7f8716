"""A client of TorchServe's management API: lists and describes models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from offpath.errors import ExpectedError
from offpath.handler.serving_settings import KEYS, RANGES

UNIX = "unix:"


@dataclass(frozen=True)
class ModelStatus:
    """One version of a model as the server describes it.

    Attributes:
        on_gpu: TorchServe has given each worker a GPU.
        queue_left: number of further requests that may wait.
        described: answer of offpath's handler to `describe_handle`: device, engine, ...; empty
            for other handlers.
    """

    model_name: str
    model_version: str
    model_url: str
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: int
    startup_timeout_s: int
    worker_states: tuple[str, ...]
    worker_pids: tuple[int, ...]
    on_gpu: bool = False
    queue_left: int | None = None
    described: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Device of the model, by its handler or else by TorchServe."""
        return str(self.described.get("device") or ("gpu" if self.on_gpu else "cpu"))

    @property
    def engine(self) -> str:
        """Engine and precision; a dash if the handler is not offpath's."""
        engine, precision = (self.described.get(k) for k in ("engine", "precision"))
        # Eager fp32 is what the gate compares with, so it has no result.
        gate = ", checked" if self.described.get("parity") else ""
        return f"{engine} {precision}{gate}" if engine else "-"

    @property
    def ready_workers(self) -> int:
        return self.worker_states.count("READY")


def open_http(base_url: str, **options: Any) -> httpx.Client:
    """Opens an HTTP client for `http://HOST:PORT`, or `unix:PATH` for a Unix socket."""
    # trust_env is off because a proxy for the outside must not see calls to loopback.
    if not base_url.startswith(UNIX):
        return httpx.Client(base_url=base_url, trust_env=False, **options)
    # verify is off because loading certificates takes 20 ms and a socket needs none.
    transport = httpx.HTTPTransport(uds=base_url.removeprefix(UNIX), verify=False)
    return httpx.Client(
        base_url="http://localhost", trust_env=False, transport=transport, **options
    )


class ManagementClient:
    """A client of the management API at `http://HOST:PORT`, or `unix:PATH` for a Unix socket.

    Use it as a context manager. `token` is the management key of a server that asks for one.
    """

    def __init__(self, base_url: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = base_url
        self._http = open_http(base_url, headers=headers, timeout=timeout_s)

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def list_models(self) -> dict[str, str]:
        """Returns the archive of each model, by the model's name."""
        answer = self._call("GET", "/models", params={"limit": 1000})
        try:
            return {one["modelName"]: one["modelUrl"] for one in answer["models"]}
        except (KeyError, TypeError) as error:  # a front door lists names alone
            raise ExpectedError(f"{self._url} is no management API") from error

    def describe(self, model_name: str) -> list[ModelStatus]:
        """Returns every version of a model with the settings in force."""
        return [parse_status(entry) for entry in self._call("GET", f"/models/{model_name}/all")]

    def describe_worker(self, model_name: str, version: str) -> ModelStatus:
        """Returns one version with its handler's description; the question waits in the queue."""
        path = f"/models/{model_name}/{version}"
        (entry,) = self._call("GET", path, params={"customized": "true"})
        return parse_status(entry)

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            reply = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise ExpectedError(
                f"the management API at {self._url} does not answer: {error!r}"
            ) from error
        if reply.is_error:
            raise ExpectedError(
                f"the management API answered {reply.status_code} to {method} {path}: "
                f"{reply.text.strip()}"
            )
        try:
            return reply.json()
        except ValueError as error:
            raise ExpectedError(f"{self._url} is no management API") from error


def parse_status(entry: dict[str, Any]) -> ModelStatus:
    workers, described = entry.get("workers", []), entry.get("customizedMetadata")
    return ModelStatus(
        model_name=entry["modelName"],
        model_version=entry["modelVersion"],
        model_url=entry["modelUrl"],
        **{name: entry[KEYS[name]] for name in RANGES},
        worker_states=tuple(worker["status"] for worker in workers),
        worker_pids=tuple(worker["pid"] for worker in workers),
        on_gpu=bool(workers) and all(worker.get("gpu") for worker in workers),
        queue_left=entry.get("jobQueueStatus", {}).get("remainingCapacity"),
        # Other handlers may answer anything.
        described=described if isinstance(described, dict) else {},
    )
