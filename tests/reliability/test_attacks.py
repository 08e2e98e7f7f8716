"""24 good clients, alone and beside each attack, at the front door and at the server's own port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from offpath.profiling.load.workload import load_workload
from offpath.serving.starting import start_server
from tests.conftest import build
from tests.guarantees import guarantee
from tests.reliability.attacks import ATTACKS
from tests.reliability.conftest import load_for
from tests.support.echo_archive import make_settings
from tests.support.front import FRONTS, Seen

CLIENTS = 24
WINDOW_S = float(os.environ.get("OFFPATH_ATTACK_WINDOW_S", "4"))
# Run only the attacks whose names have a match of this pattern.
CHOSEN = os.environ.get("OFFPATH_ATTACKS", "")
MIN_RATE, MAX_P99 = 0.6, 2.0
# At TorchServe's port Java reads and copies each body first, and megabytes delay the batch beside
# them for that long (docs/security.md).
MAX_P99_DIRECT = {"20 MB of fill bytes": 5.0, "250 uploads stopped at 4 MB": 5.0}
# Ten connections of them are a thousand images, which take turns with everybody's.
OF_KSERVE = "KServe requests of 100 images"
MAX_P99_KSERVE = 3.0
# Alone and beside an attack take turns so many times, because other work on a shared machine can
# take a core for seconds. All windows count.
TURNS = 2

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Good:
    """The good clients' results in one window."""

    rate: float
    p99_ms: float
    failed: int

    @classmethod
    def of(cls, *windows: Seen) -> Good:
        replies = [reply for seen in windows for reply in seen.replies]
        took_ms = [1e3 * reply.took_s for reply in replies if reply.status == 200]
        p99_ms = float(np.percentile(took_ms, 99)) if took_ms else float("inf")
        failed = sum(seen.failed for seen in windows)
        return cls(len(took_ms) / WINDOW_S / len(windows), p99_ms, failed)


@pytest.fixture(scope="module", params=FRONTS)
def product(request: pytest.FixtureRequest) -> str:
    """Returns the server that is attacked."""
    return str(request.param)


@pytest.fixture(scope="module", params=["front", "direct"])
def url(
    request: pytest.FixtureRequest, product: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("attacks")
    store = build(folder, "near-free", "near-free").parent
    if request.param == "front":
        with FRONTS[product](store, folder / "logs", "near-free") as door:
            yield f"{door.url}/predictions/near-free"
    else:
        with direct(store, product) as address:
            yield address


@contextmanager
def direct(store: Path, product: str) -> Iterator[str]:
    with start_server(make_settings(store / "near-free.mar", server=product)) as server:
        yield f"{server.inference_url}/predictions/near-free"


@contextmanager
def attacking(url: str, name: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.reliability.attacks", url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        try:
            yield
        finally:
            process.kill()


@guarantee("Explanations")
def test_predictions_keep_their_rate_beside_explanations(tmp_path: Path, product: str) -> None:
    store = build(tmp_path, "near-free", "near-free", explanations=True).parent
    bodies = load_workload("photos-55k").read()
    with direct(store, product) as url:
        load_for(url, bodies, CLIENTS, 10)
        with attacking(url, "explanations"):
            load_for(url, bodies, CLIENTS, WINDOW_S)  # captum's import
            beside = Good.of(load_for(url, bodies, CLIENTS, WINDOW_S))
        alone = Good.of(load_for(url, bodies, CLIENTS, WINDOW_S))
    print(f"\nbeside explanations {beside}, alone {alone}")
    assert beside.rate >= MIN_RATE * alone.rate and not beside.failed


def measure(url: str, name: str) -> tuple[Good, Good]:
    """Measures the good clients alone and beside an attack."""
    bodies = load_workload("photos-55k").read()
    alone, beside = [], []
    for _ in range(TURNS):
        alone.append(load_for(url, bodies, CLIENTS, WINDOW_S))
        with attacking(url, name):
            beside.append(load_for(url, bodies, CLIENTS, WINDOW_S))
    return Good.of(*alone), Good.of(*beside)


def is_held(alone: Good, beside: Good, max_p99: float) -> bool:
    return (
        not beside.failed
        and beside.rate >= MIN_RATE * alone.rate
        and beside.p99_ms <= max_p99 * alone.p99_ms
    )


@guarantee("Slow clients, half bodies, crowds")
@guarantee("Slow clients")
def test_good_clients_beside_attacks(
    url: str, product: str, request: pytest.FixtureRequest
) -> None:
    door = request.node.callspec.params["url"]
    exceptions = MAX_P99_DIRECT if door == "direct" and product == "torchserve" else {}
    load_for(url, load_workload("photos-55k").read(), CLIENTS, 10)  # Java's compiler
    broken = []
    print(f"\n{product}")
    print("| port | attack | alone /s, p99 ms | beside it /s, p99 ms | failed |")
    print("|---|---|---|---|---|")
    chosen = [name for name in ATTACKS if re.search(CHOSEN, name)]
    if product == "torchserve":
        chosen = [name for name in chosen if name != OF_KSERVE]  # it has no such path
    for name in chosen:
        max_p99 = MAX_P99_KSERVE if name == OF_KSERVE else exceptions.get(name, MAX_P99)
        alone, beside = measure(url, name)
        print(
            f"| {door} | {name} | {alone.rate:.0f}, {alone.p99_ms:.0f} "
            f"| {beside.rate:.0f}, {beside.p99_ms:.0f} | {beside.failed} |"
        )
        if not is_held(alone, beside, max_p99):
            broken.append(name)
    assert not broken
