from __future__ import annotations

from offpath.serving.server.server_log import parse_line
from offpath.serving.torchserve.torchserve_server import find_load_failure

TIME = "2026-11-21T03:59:26,104"


def worker_line(worker: str, message: str, stream: str = "stdout") -> str:
    return f"{TIME} [INFO ] {worker}-{stream} MODEL_LOG - {message}"


def test_failure_is_the_workers_own_traceback_without_its_neighbours_lines() -> None:
    lines = [
        worker_line("W-9000-echo_1.0", "Backend worker process died."),
        worker_line("W-9001-echo_1.0", "Torch worker started."),
        worker_line("W-9000-echo_1.0", "Traceback (most recent call last):"),
        worker_line("W-9000-echo_1.0", "ValueError: unknown key 'topk'"),
        f"{TIME} [INFO ] W-9000-echo_1.0 WorkerThread - Retry worker: 9000 in 1 seconds.",
        worker_line("W-9000-echo_1.0", "s_name_part0=/tmp/x/.ts.sock, pid=7"),
        worker_line("W-9000-echo_1.0", "Torch worker started."),
    ]
    assert find_load_failure([parse_line(line) for line in lines]) == (
        "echo_1.0",
        [
            "Backend worker process died.",
            "Traceback (most recent call last):",
            "ValueError: unknown key 'topk'",
        ],
    )
