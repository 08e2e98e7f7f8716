from __future__ import annotations

import logging
from pathlib import Path
from xml.etree import ElementTree

import pytest

from offpath.handler.announcer import Announcer
from offpath.serving.server.properties import CONF_DIR
from offpath.serving.server.server_log import (
    LogFollower,
    find_server_failure,
    parse_line,
    read_log,
)
from tests.guarantees import guarantee

TIME = "2026-11-21T03:59:26,104"


def test_layout_as_torchserve_ships_it_is_understood() -> None:
    line = parse_line(f"{TIME} [WARN ] W-9000-echo_1.0-stderr org.pytorch.serve.wlm.X - spoke - up")
    assert (line.level, line.worker, line.message) == ("WARN", "W-9000-echo_1.0", "spoke - up")


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


@guarantee(
    "The log folder is removed",
    "serving/server/server_log.py",
    'if self._file is None:\n            return b""',
    'if not self._path.exists():\n            return b""',
)
@pytest.mark.parametrize("removed", ["file", "folder"])
def test_a_removed_log_is_read_on_and_said_once(tmp_path: Path, removed: str) -> None:
    path = tmp_path / "logs" / "granian.log"
    path.parent.mkdir()
    with path.open("a") as file:
        follower = LogFollower(path)
        path.unlink()
        if removed == "folder":
            path.parent.rmdir()
        file.write(f"{TIME} [ERROR] supervisor granian - worker 0 of m ended by SIGSEGV\n")
        file.flush()
        ended, gone = follower.read_new()
        file.write(f"{TIME} [ERROR] supervisor granian - again\n")
        file.flush()
        (again,) = follower.read_new()
    assert (ended.message, again.message) == ("worker 0 of m ended by SIGSEGV", "again")
    assert gone.is_shown and f"{path} was removed" in gone.message


def test_a_log_that_was_moved_aside_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "torchserve.log"
    path.touch()
    follower = LogFollower(path)
    path.write_text("old\n")
    path.rename(tmp_path / "torchserve.log.1")
    path.write_text("new and longer than the old one\n")
    lines = [*follower.read_new(), *follower.read_new()]
    assert [line.message for line in lines] == ["old", "new and longer than the old one"]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("[INFO ] {worker}-stdout MODEL_LOG - {text} ", id="torchserve"),
        pytest.param("[WARNING] {worker} offpath.handler.custom_handler - {text}", id="granian"),
    ],
)
def test_the_first_of_equal_warnings_of_all_workers_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    path = tmp_path / "server.log"
    follower = LogFollower(path)
    where = "ValueError in my_handler.py, line 6"
    for worker in ("W-0-m_1.0", "W-1-m_1.0"):
        announcer = Announcer(logging.getLogger(), "Mine.postprocess_item")
        announcer.announce(where, f"{where}: 'planted by {worker}'; the item gets a 500")
        with path.open("a") as file:
            text = layout.format(worker=worker, text=caplog.messages[-1])
            file.write(f"{TIME} {text}\n{TIME} {layout.format(worker=worker, text='a print')}\n")
    shown = [line.message for line in follower.read_new() if line.is_shown]
    assert len(shown) == 1 and where in shown[0] and "planted by W-0" in shown[0]


@guarantee("Logs that fill the disk or forge lines")
def test_lines_about_clients_never_explain_the_servers_end() -> None:
    lines = [
        f"{TIME} [INFO ] main ModelServer - Initialize Inference server",
        f"{TIME} [ERROR] epollEventLoopGroup-3-1 HttpRequestHandler - Exception: pay here",
        f"{TIME} [ERROR] main ModelServer - OutOfMemoryError",
    ]
    parsed = [parse_line(line) for line in lines]
    assert find_server_failure(parsed) == ["OutOfMemoryError"]
    assert find_server_failure(parsed[:2]) == ["Initialize Inference server"]


@guarantee(
    "Logs that fill the disk or forge lines",
    "serving/server/server_log.py",
    "    text = printable(text)\n",
    "",
)
@pytest.mark.parametrize("character", ["\x1b", "\r", "\x00", "\x85", "\x9b", "\x7f"])
def test_control_characters_of_a_log_reach_no_terminal(tmp_path: Path, character: str) -> None:
    path = tmp_path / "torchserve.log"
    path.write_text(f"a{character}[2Jb\nc\n", encoding="utf-8", newline="")
    lines = [line.message for line in read_log(path)]
    assert lines == [f"a{ascii(character)[1:-1]}[2Jb", "c"]


@guarantee("Logs that fill the disk or forge lines")
def test_every_log_of_the_server_has_a_bound() -> None:
    appenders = ElementTree.parse(CONF_DIR / "log4j2.xml").find("Appenders")
    assert appenders is not None and len(appenders)
    for appender in appenders:
        assert appender.tag == "RollingFile"
        assert appender.find("Policies/SizeBasedTriggeringPolicy") is not None
        strategy = appender.find("DefaultRolloverStrategy")
        assert strategy is not None and int(strategy.attrib["max"]) <= 5
