from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from offpath.serving.granian.server import MOST_LOG_BYTES, GranianServer
from offpath.serving.torchserve.server_log import (
    LogFollower,
    find_load_failure,
    find_server_failure,
    has_exception,
    parse_line,
    read_log,
)
from offpath.serving.torchserve.server_settings import CONF_DIR, ServerSettings

TIME = "2026-11-21T03:59:26,104"


def worker_line(worker: str, message: str, stream: str = "stdout") -> str:
    return f"{TIME} [INFO ] {worker}-{stream} MODEL_LOG - {message}"


def test_healthy_log_has_no_failure() -> None:
    lines = [
        f"{TIME} [INFO ] main ModelManager - Model echo loaded.",
        worker_line("W-9000-echo_1.0", "Torch worker started."),
    ]
    assert find_load_failure([parse_line(line) for line in lines]) is None


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


def test_layout_as_torchserve_ships_it_is_understood() -> None:
    line = parse_line(f"{TIME} [WARN ] W-9000-echo_1.0-stderr org.pytorch.serve.wlm.X - spoke - up")
    assert (line.level, line.worker, line.message) == ("WARN", "W-9000-echo_1.0", "spoke - up")


def test_server_failure_starts_at_the_error() -> None:
    lines = ["starting", "java.io.IOException: Failed to bind to address", "  at x"]
    assert find_server_failure([parse_line(line) for line in lines]) == lines[1:]


def test_follower_gives_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "torchserve.log"
    path.write_text("old\n")
    follower = LogFollower(path)
    with path.open("a") as file:
        file.write("one\ntw")
    assert [line.message for line in follower.read_new()] == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert [line.message for line in follower.read_new()] == ["two"]
    path.write_text("n\n")
    assert [line.message for line in follower.read_new()] == ["n"]


def test_lines_about_clients_never_explain_the_servers_end() -> None:
    lines = [
        f"{TIME} [INFO ] main ModelServer - Initialize Inference server",
        f"{TIME} [ERROR] epollEventLoopGroup-3-1 HttpRequestHandler - Exception: pay here",
        f"{TIME} [ERROR] main ModelServer - OutOfMemoryError",
    ]
    parsed = [parse_line(line) for line in lines]
    assert find_server_failure(parsed) == ["OutOfMemoryError"]
    assert find_server_failure(parsed[:2]) == ["Initialize Inference server"]


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x00", "\x85", "\x9b", "\x7f"])
def test_control_characters_of_a_log_reach_no_terminal(tmp_path: Path, character: str) -> None:
    path = tmp_path / "torchserve.log"
    path.write_text(f"a{character}[2Jb\nc\n", encoding="utf-8", newline="")
    lines = [line.message for line in read_log(path)]
    assert lines == [f"a{ascii(character)[1:-1]}[2Jb", "c"]


def test_every_log_of_the_server_has_a_bound() -> None:
    appenders = ElementTree.parse(CONF_DIR / "log4j2.xml").find("Appenders")
    assert appenders is not None and len(appenders)
    for appender in appenders:
        assert appender.tag == "RollingFile"
        assert appender.find("Policies/SizeBasedTriggeringPolicy") is not None
        strategy = appender.find("DefaultRolloverStrategy")
        assert strategy is not None and int(strategy.attrib["max"]) <= 5


def test_granians_log_has_a_bound_and_its_writers_go_on(tmp_path: Path) -> None:
    server = GranianServer(ServerSettings(tmp_path, (), log_dir=tmp_path / "logs"))
    server._make_folders()
    log, old = server.log_path, tmp_path / "logs" / "granian.log.1"
    server.rotate_log()  # before its first line
    with open(log, "ab", buffering=0) as writer:
        for size in (MOST_LOG_BYTES, MOST_LOG_BYTES + 1):
            writer.truncate(size)
            server.rotate_log()
            assert old.exists() == (size > MOST_LOG_BYTES)
        writer.write(f"{TIME} [ERROR] supervisor granian - the cause\n".encode())
        assert log.read_bytes().endswith(b"the cause\n") and log.stat().st_size < 100
        assert server.last_words() == ["the cause"]
        old.unlink()
        old.mkdir()  # it cannot be written, as on a full disk
        writer.truncate(MOST_LOG_BYTES + 1)
        server.rotate_log()
        assert log.stat().st_size == 0
    server.stop()
