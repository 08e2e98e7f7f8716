"""Servers behind the front door while neither they nor `offpath serve` can open anything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.descriptors import no_new_descriptors
from tests.support.eventually import eventually
from tests.support.front import logged
from tests.support.granian import FRONTS
from tests.support.images import jpeg

pytestmark = pytest.mark.server


@pytest.mark.parametrize("product", ["torchserve", pytest.param("granian", marks=pytest.mark.slow)])
def test_supervisors_and_workers_outlive_a_lack_of_descriptors(
    product: str, model_store: Path, tmp_path: Path
) -> None:
    def read_logs() -> str:
        return "".join(path.read_text() for path in tmp_path.glob("logs/*/*.log"))

    with logged(FRONTS[product], model_store, tmp_path, "near-free") as door:
        workers = door.python_workers()
        forker = psutil.Process(workers[0]).ppid()
        with door.load("/predictions/near-free", [jpeg()]) as seen:
            eventually(lambda: seen.statuses[200] > 50)
            with no_new_descriptors(door.process.pid, forker):
                os.kill(workers[0], signal.SIGKILL)
                eventually(lambda: "waiting until files can be opened" in door.errors())
                own_log = Path(f"/proc/{forker}/fd/1")
                eventually(lambda: "Too many open files" in own_log.read_text())
                count = seen.statuses[200]
                eventually(lambda: seen.statuses[200] > count + 50)
            eventually(lambda: len(set(door.python_workers()) - {workers[0]}) == len(workers))
            with no_new_descriptors(*workers[1:]):
                eventually(lambda: "the shipper: OSError: [Errno 24]" in read_logs())
            eventually(door.is_healthy)
            count = seen.statuses[200]
            eventually(lambda: seen.statuses[200] > count + 50)
        assert door.process.poll() is None and forker == psutil.Process(workers[1]).ppid()
        assert "Traceback" not in door.errors()
