"""Multi Model Server; with its environment set up (`slow`), the server itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.archive.photographs import find_sources
from offpath.profiling.load.answers import check_answers, make_checks
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.mms import choose_low_ports, make_mms


def test_ports_are_such_as_mms_accepts() -> None:
    ports = choose_low_ports(2)

    assert len(set(ports)) == 2
    assert all(1024 < port <= 32767 for port in ports)


def test_mms_that_is_not_set_up_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))

    assert "offpath bench setup mms" in str(
        make_mms(load_model("near-free"), 2).why_not()
    )


@pytest.mark.slow
def test_mms_gives_the_reference_answers_batches_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    model = load_model("near-free")
    server = make_mms(model, 2)
    reason = server.why_not()
    if reason is not None:
        pytest.skip(reason)
    checks = make_checks(model, [path.read_bytes() for path in find_sources()])
    server.prepare(tmp_path / "mms")

    with server.running() as running:
        difference = check_answers(
            server.name, running.predict_url, server.call, checks
        )
        management = (tmp_path / "mms" / "config.properties").read_text()
        address = management.split("management_address=")[1].split()[0]
        status = httpx.get(f"{address}/models/classifier", trust_env=False).json()
        groups = running.groups()
        os.kill(groups["frontend"][0], signal.SIGKILL)

    assert difference < 0.01
    assert (status["batchSize"], status["maxBatchDelay"]) == (8, 1)
    # MMS keeps a parent of its workers besides the two.
    assert len(groups["workers"]) >= 2
    assert not any(psutil.pid_exists(pid) for pids in groups.values() for pid in pids)
