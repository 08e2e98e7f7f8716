"""mosec: a Rust front end, Python workers behind Unix sockets."""

from __future__ import annotations

from offpath.profiling.servers.adapter import PackagedAdapter, ProgramSettings, Start, is_service
from offpath.profiling.servers.environments import Environment
from offpath.serving.server.server_settings import LOOPBACK


class Mosec(PackagedAdapter):
    """mosec with one worker per core."""

    name = "mosec"
    # It brings its own HTTP server and needs two small packages.
    environment = Environment("mosec", ("mosec==0.9.8",), size_mb=40)
    predict_path, ready_path = "/inference", "/metrics"
    # It listens when the first worker is there.
    ready_line = "socket connected to"
    # The other processes are the Rust program, and Python that waits.
    worker_mark = "spawn_main"

    def make_command(self, start: Start) -> list[str]:
        # By default it listens on all addresses, and gives up a request after 3 s.
        timeout_ms = ProgramSettings.timeout_s * 1000
        return start.run_module(
            __name__,
            *("--address", LOOPBACK, "--port", str(start.port)),
            *("--timeout", str(timeout_ms)),
        )


class MosecOffpathDecode(Mosec):
    """The same with our decode and engine in its worker, so that only the servers differ."""

    name, kind = "mosec-offpath-decode", "offpath-decode"


if is_service():
    from mosec import Server, Worker

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
