"""Faults of one foreign handler beside a healthy model, on Granian and on TorchServe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.serving.granian.test_foreign import write_archive
from tests.support.echo_archive import write_mar
from tests.support.eventually import eventually
from tests.support.front import front

pytestmark = pytest.mark.server
SICK = """
import os
import signal
import sys
import time

held = []


def handle(data, context):
    said = context.get_request_header(0, "x-do") if data else None
    if said == "raise":
        raise ValueError("secret")
    if said == "exit":
        sys.exit(1)
    if said == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if said == "hang":
        time.sleep(3600)
    if said == "leak":
        held.append(bytearray(os.urandom(1)) * 20_000_000)
        held.extend(open(os.devnull) for _ in range(20))
    return ["done"] * len(data or ())
"""
CONFIG = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1, "responseTimeout": 10}
# What the handler does -> its requests, and how many of them may fail.
FAULTS = {"raise": (5, 5), "exit": (1, 1), "kill": (1, 1), "hang": (1, 1), "leak": (20, 0)}


@pytest.mark.parametrize("kind", ["granian", pytest.param("torchserve", marks=pytest.mark.slow)])
def test_a_sick_handler_costs_its_own_requests_alone(tmp_path: Path, kind: str) -> None:
    write_archive(tmp_path, "sick", {"handler.py": SICK}, "handler.py:handle", CONFIG)
    write_mar(tmp_path, "well")
    sick: dict[str, Counter[int]] = {}
    with front(tmp_path, tmp_path / "logs", "--server", kind) as door:

        def ask(do: str) -> int:
            url, headers = f"{door.url}/predictions/sick", {"x-do": do}
            return httpx.post(url, headers=headers, content=b"x", timeout=60).status_code

        with door.load("/predictions/well", [b"x"], clients=3) as well:
            for do, (requests, _) in FAULTS.items():
                sick[do] = Counter()
                for _ in range(requests):
                    sick[do][ask(do)] += 1
                    eventually(lambda: ask("nothing") == 200)
    print(f"{kind}: sick {sick}; well {well}")
    failed = {do: statuses.total() - statuses[200] for do, statuses in sick.items()}
    assert all(failed[do] == most for do, (_, most) in FAULTS.items())
    assert set(well.statuses) == {200} and (well.refused, well.broken.total()) == (0, 0)
