from __future__ import annotations

from offpath.serving.server.server_log import has_exception, parse_line
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


def test_death_without_a_word_shows_the_workers_last_lines() -> None:
    lines = [
        worker_line("W-9000-echo_1.0", "Segmentation fault", stream="stderr"),
        f"{TIME} [INFO ] W-9000-echo_1.0 WorkerThread - Retry worker: 9000 in 1 seconds.",
    ]
    found = find_load_failure([parse_line(line) for line in lines])
    assert found == ("echo_1.0", ["Segmentation fault"])


def test_an_attempt_with_its_traceback_comes_before_one_without() -> None:
    """Java can stop reading a worker's output before its traceback."""
    retry = f"{TIME} [INFO ] W-9000-echo_1.0 WorkerThread - Retry worker: 9000 in 1 seconds."
    start = worker_line("W-9000-echo_1.0", "s_name_part0=/tmp/x/.ts.sock, pid=7")
    ended = worker_line("W-9000-echo_1.0", "model_name: echo, batchSize: 4")
    error = worker_line("W-9000-echo_1.0", "ValueError: unknown key 'topk'")
    first, second = [start, ended, retry], [start, ended, error, retry]
    found = find_load_failure([parse_line(line) for line in first])
    assert found is not None and not has_exception(found[1])
    found = find_load_failure([parse_line(line) for line in first + second])
    assert found is not None and has_exception(found[1])
