"""LitServe: a LitAPI with batching; the raw body comes in by a FastAPI dependency."""

# What it imports is installed in its own environment alone.
# mypy: ignore-errors

# No `annotations` from __future__: LitServe reads the types from the signatures themselves.

from typing import Annotated

import litserve
from fastapi import Depends, Request

from offpath.profiling.servers.services.settings import ServiceSettings

SETTINGS = ServiceSettings.from_environment()


async def read_body(request: Request) -> bytes:
    """LitServe itself takes JSON and forms alone."""
    return await request.body()


class ClassifierAPI(litserve.LitAPI):
    """The steps as LitServe names them; all run in the worker process."""

    def setup(self, device: str) -> None:
        """Once a worker."""
        self.classify = SETTINGS.load_classifier()

    def decode_request(self, request: Annotated[bytes, Depends(read_body)]) -> bytes:
        """One picture."""
        return request

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Stays a list: the pictures differ in size."""
        return inputs

    def predict(self, x: list[bytes]) -> list[dict[str, float]]:
        """A batch's answers."""
        return self.classify(x)

    def unbatch(self, output: list[dict[str, float]]) -> list[dict[str, float]]:
        """One answer a picture already."""
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
        host="127.0.0.1",
        port=SETTINGS.port,
        log_level="warning",
        generate_client_file=False,
    )
