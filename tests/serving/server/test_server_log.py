from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from offpath.serving.server.server_log import (
    LogFollower,
    find_server_failure,
    parse_line,
    read_log,
)
from offpath.serving.server.server_settings import CONF_DIR

TIME = "2026-11-21T03:59:26,104"


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
