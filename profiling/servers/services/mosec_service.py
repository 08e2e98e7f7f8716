"""mosec: the README's server; the body is read as it comes."""

from __future__ import annotations

from mosec import Server, Worker

from offpath.profiling.servers.services.settings import ServiceSettings

SETTINGS = ServiceSettings.from_environment()


class Classifier(Worker):
    """Decodes and classifies; one process a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = SETTINGS.load_classifier()

    def deserialize(self, data: bytes) -> bytes:
        """The body is the picture; mosec's own would be JSON."""
        return data

    def forward(
        self, data: list[bytes] | bytes
    ) -> list[dict[str, float]] | dict[str, float]:
        """A batch where `max_batch_size` is above 1, else one picture; answers leave as JSON."""
        if isinstance(data, list):
            return self.classify(data)
        return self.classify([data])[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Classifier,
        num=SETTINGS.workers,
        max_batch_size=SETTINGS.batch_size,
        max_wait_time=SETTINGS.max_batch_delay_ms,
    )
    server.run()
