"""LitServe: uvicorn processes in front, worker processes behind queues."""

# No `annotations` from __future__: LitServe reads the types from the signatures themselves.

from typing import Annotated

from offpath.profiling.servers.adapter import PackagedAdapter, ServiceSettings, is_service
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_process import LOOPBACK


class LitServe(PackagedAdapter):
    """LitServe with one worker per core, and as many HTTP processes, which is its default."""

    name = "litserve"
    environment = Environment(
        "litserve",
        (
            "litserve==0.2.19",
            # What it serves with; left open they would make another server of it each month.
            "fastapi==0.165.0",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
        ),
        size_mb=50,
    )
    # /health is 200 when all workers have run `setup`.
    predict_path, ready_path = "/predict", "/health"
    # Its workers are spawned, its HTTP processes forked.
    worker_mark = "spawn_main"


if is_service():
    import litserve
    from fastapi import Depends, Request

    SETTINGS = ServiceSettings.from_environment()

    async def read_body(request: Request) -> bytes:
        """Returns the raw body: LitServe itself takes only JSON and forms."""
        body: bytes = await request.body()
        return body

    class ClassifierAPI(litserve.LitAPI):
        """The steps as LitServe names them; all run in the worker process."""

        def setup(self, device: str) -> None:
            self.classify = SETTINGS.load_classifier()

        def decode_request(self, request: Annotated[bytes, Depends(read_body)]) -> bytes:
            return request

        def batch(self, inputs: list[bytes]) -> list[bytes]:
            """Returns a list: the photographs differ in size."""
            return inputs

        def predict(self, x: list[bytes]) -> list[dict[str, float]]:
            return self.classify(x)

        def unbatch(self, output: list[dict[str, float]]) -> list[dict[str, float]]:
            return output


if __name__ == "__main__":
    api = ClassifierAPI(
        max_batch_size=SETTINGS.batch_size,
        batch_timeout=SETTINGS.max_batch_delay_ms / 1000,
    )
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=SETTINGS.workers,
        timeout=SETTINGS.timeout_s,
    )
    server.run(
        host=LOOPBACK,
        port=SETTINGS.port,
        log_level="warning",
        generate_client_file=False,
    )
