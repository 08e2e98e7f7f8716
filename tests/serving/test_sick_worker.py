"""Workers of a real TorchServe whose model fails under load: few answers fail, and it heals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch

from offpath.serving.check.running import check_server
from offpath.serving.finding import State
from offpath.serving.front.readiness import MAX_SICK
from offpath.serving.prediction_log.reading import compare, open_store_at, read_records
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.serving.scrape import read_metrics
from tests.support.eventually import eventually
from tests.support.front import FrontProcess, Reply, Seen, load, log_variables
from tests.support.images import jpeg
from tests.support.obedient_model import (
    BATCH,
    FOR_EVER,
    WORKERS,
    Flag,
    build_obedient,
    change_models,
    read_ready_pids,
)

pytestmark = pytest.mark.server
CLIENTS = 12
# Between a client's requests, so that a new worker gets a core too.
PAUSE_S = 0.02
# A worker that ended less than this ago is still missing.
WATCH_S = 2.0
LINE = "this worker must be replaced"
CUDA_ERROR = "torch.AcceleratorError('CUDA error: an illegal memory access\\nCUDA kernel errors')"
NO_MEMORY = 'raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")'


@dataclass(frozen=True)
class Failing:
    """The model `failing` with two workers, and the file that makes one of them fail."""

    server: TorchServe
    flag: Flag

    def read_ready_pids(self) -> set[int]:
        """Returns the process ids of the workers; an empty set unless all are ready."""
        pids = read_ready_pids(self.server.management_url, "failing")
        return pids if len(pids) == WORKERS else set()

    def count(self, name: str) -> float:
        """Reads a metric; 0 before it exists."""
        return sum(read_metrics(self.server, "failing")[name].values())

    def count_lines(self) -> int:
        """Counts the log's lines about a worker that ends."""
        return self.server.log_path.read_text().count(LINE)


def build_failing(store: Path, flag: Flag, preset: str = "cpu") -> Path:
    """Builds `failing.mar`."""
    # A replayed graph does not run the model's Python code, which reads the flag.
    handler = {"prediction_log": {"segment_max_age_s": 0.5}, "cuda_graphs": False}
    return build_obedient(store, flag, "failing", preset=preset, **handler)


@pytest.fixture(scope="module")
def failing(server: TorchServe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    """Registers the model with the shared server, for its GPU if there is one."""
    flag = Flag(tmp_path_factory.mktemp("failing") / "flag")
    preset = "t4" if torch.cuda.is_available() else "cpu"
    archive = build_failing(server.settings.model_store, flag, preset)
    asked = {"url": archive.name, "initial_workers": WORKERS, "synchronous": "true"}
    change_models(server.management_url, "POST", "/models", **asked)
    yield Failing(server, flag)
    change_models(server.management_url, "DELETE", "/models/failing")


def load_around(failing: Failing, fail: Callable[[], None], is_replaced: bool = True) -> Seen:
    """Returns the results of a load while a model fails.

    Args:
        failing: the server.
        fail: makes the model fail.
        is_replaced: whether to wait for another worker. Otherwise all workers must stay.
    """
    url = f"{failing.server.inference_url}/predictions/failing"
    before = eventually(failing.read_ready_pids)
    with load(url, [jpeg()], CLIENTS, PAUSE_S) as seen:
        eventually(lambda: len(seen.replies) > 10 * CLIENTS)
        fail()
        eventually(lambda: seen.statuses[503])
        if is_replaced:
            eventually(lambda: failing.read_ready_pids() not in (set(), before))
        else:
            time.sleep(WATCH_S)  # in which a worker that had ended would be missed
            assert failing.read_ready_pids() == before
        count = len(seen.replies)
        eventually(lambda: len(seen.replies) > count + 5 * CLIENTS)
    print(f"\n{seen}")
    assert not seen.broken and not seen.refused
    return seen


# Other errors are counted in tests/handler/process/test_sick_worker.py.
@guarantee("A broken model on one worker")
def test_a_sick_worker_is_replaced_and_costs_few_answers(failing: Failing) -> None:
    lines, ended = failing.count_lines(), failing.count("offpath_sick_workers_total")
    seen = load_around(failing, lambda: failing.flag.order(f"raise {CUDA_ERROR}", FOR_EVER))
    # 500 is TorchServe's answer to the batch that reached the worker while it was ending.
    assert set(seen.statuses) <= {200, 503, 500}
    assert 0 < seen.statuses[503] <= BATCH
    assert seen.statuses[500] <= BATCH
    assert failing.count_lines() == lines + 1
    eventually(lambda: failing.count("offpath_sick_workers_total") == ended + 1)
    check_log(failing, [reply for reply in seen.replies if reply.status in (200, 503)])
    found = {one.subject: one for one in check_server(failing.server.management_url)}
    assert found["broken models"].state is State.LOST
    assert found["broken models"].found.startswith(f"{ended + 1:.0f} times")


def check_log(failing: Failing, replies: list[Reply]) -> None:
    """Checks that each of our answers has one record."""
    asked = {reply.request_id for reply in replies}
    spool = Path(failing.server.settings.env["OFFPATH_SPOOL_DIR"])
    store = open_store_at(spool.with_name("log").as_uri())

    def missing_and_double() -> tuple[int, int]:
        found = Counter(one["event_id"] for one in read_records(store))
        return len(compare(found.elements(), asked).missing), max(found.values())

    eventually(lambda: missing_and_double() == (0, 1))


@guarantee("Out of memory in the model")
def test_a_batch_out_of_memory_is_asked_again_and_its_worker_stays(failing: Failing) -> None:
    eventually(failing.read_ready_pids)
    lines = failing.count_lines()
    before = failing.count("offpath_worker_starts_total")
    failed = failing.count("offpath_out_of_memory_total")
    seen = load_around(failing, lambda: failing.flag.order(NO_MEMORY), is_replaced=False)
    assert set(seen.statuses) == {200, 503} and seen.statuses[503] <= BATCH
    assert failing.count_lines() == lines
    assert failing.count("offpath_worker_starts_total") == before
    eventually(lambda: failing.count("offpath_out_of_memory_total") == failed + 1)
    check_log(failing, seen.replies)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_real_failures_of_a_gpu(failing: Failing) -> None:
    """A kernel's assertion ends its worker; memory that the device does not have fails a batch."""
    lines = failing.count_lines()
    no_memory = "torch.empty(1 << 46, device=images.device)"
    seen = load_around(failing, lambda: failing.flag.order(no_memory), is_replaced=False)
    assert set(seen.statuses) == {200, 503} and seen.statuses[503] <= BATCH
    index = "torch.full((1,), 9, device=images.device)"
    assertion = f"torch.zeros(4, device=images.device)[{index}].cpu()"
    seen = load_around(failing, lambda: failing.flag.order(assertion, FOR_EVER))
    assert set(seen.statuses) <= {200, 503, 500}
    assert 0 < seen.statuses[503] <= BATCH and seen.statuses[500] <= BATCH
    assert failing.count_lines() == lines + 1
    check_log(failing, [reply for reply in seen.replies if reply.status in (200, 503)])


@pytest.mark.slow
def test_a_door_whose_workers_are_sick_again_and_again_is_unhealthy(tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    flag = Flag(tmp_path / "flag")
    build_failing(store, flag)
    with FrontProcess(store, tmp_path / "logs", "failing", **log_variables(tmp_path)) as door:
        for number in range(1, MAX_SICK + 1):
            assert door.is_healthy()
            workers = set(door.python_workers())
            flag.order(f"raise {CUDA_ERROR}", FOR_EVER)
            url = f"{door.url}/predictions/failing"
            assert httpx.post(url, content=jpeg()).status_code == 503
            eventually(lambda: door.errors().count(LINE) == number)
            eventually(lambda: len(set(door.python_workers()) - workers) == 1)
            eventually(lambda: len(door.python_workers()) == WORKERS)
            if number < MAX_SICK:
                eventually(door.is_healthy)
        eventually(lambda: not door.is_healthy())
        assert f"{MAX_SICK} workers ended with a broken model" in door.errors()
