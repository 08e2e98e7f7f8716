"""The classifier as a mosec server."""

from __future__ import annotations

from mosec import Server, Worker

from offpath.profiling.servers.programs.program_settings import ProgramSettings

SETTINGS = ProgramSettings.from_environment()


class MosecWorker(Worker):
    """Decodes and classifies; one process per worker, as in mosec's README."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = SETTINGS.load_classifier()

    def deserialize(self, data: bytes) -> bytes:
        """Returns the body unchanged: mosec itself would read JSON."""
        return data

    def forward(self, data: list[bytes] | bytes) -> list[dict[str, float]] | dict[str, float]:
        """Answers a batch, or one photograph where `max_batch_size` is 1."""
        if isinstance(data, list):
            return self.classify(data)
        return self.classify([data])[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        MosecWorker,
        num=SETTINGS.workers,
        max_batch_size=SETTINGS.batch_size,
        max_wait_time=SETTINGS.max_batch_delay_ms,
    )
    server.run()
