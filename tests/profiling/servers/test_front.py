from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest

from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import SERVERS
from tests.support.eventually import eventually
from tests.support.front import is_alive
from tests.support.images import jpeg


@pytest.mark.server
def test_it_answers_through_nginx_and_leaves_nothing(tmp_path: Path) -> None:
    server = SERVERS["offpath"](load_model("near-free"), 2)
    assert server.why_not() is None
    server.prepare(tmp_path / "offpath")
    with server.running() as running:
        answer = httpx.post(running.predict_url, content=jpeg(size=(2048, 1365)), timeout=60)
        assert answer.status_code == 200
        groups = running.groups()
        names = {
            psutil.Process(pid).name() for group in ("frontend", "nginx") for pid in groups[group]
        }
        assert names == {"java", "nginx"}
        assert len(groups["workers"]) == 2
        pids = [pid for group in groups.values() for pid in group]
    eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.server
def test_granian_without_the_front_door_answers(tmp_path: Path) -> None:
    server = SERVERS["offpath-granian-direct"](load_model("near-free"), 2)
    server.prepare(tmp_path / "granian")
    with server.running() as running:
        assert httpx.post(running.predict_url, content=jpeg(size=(64, 48))).status_code == 200
