"""Canaries and shadows: options, nginx's configuration, and real doors with two versions."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.errors import WrongOption
from offpath.serving.front.door_settings import DoorPlace, DoorSettings
from offpath.serving.front.nginx_config import COPIES, DoorPlan
from offpath.serving.front.splits import Split
from offpath.serving.front.upstreams import Upstreams
from offpath.serving.prediction_log.reading import compare, name_reply
from offpath.serving.server.management import ManagementClient
from tests.conftest import build
from tests.guarantees import guarantee
from tests.serving.processes import is_alive
from tests.serving.scrape import read_counts, sum_metric
from tests.support.eventually import eventually
from tests.support.front import BODIES, FRONTS, FrontProcess, Seen, load, log_variables
from tests.support.obedient_model import change_models

# A handler that serves READY and fails each request.
FAILING = """
from offpath.handler.classifier import OffpathClassifier


class Failing(OffpathClassifier):
    def postprocess_item(self, result):
        raise RuntimeError
"""
FIVE = Split("defects", "2.0", "5")
TEN = replace(FIVE, share="10")
# Number of labels in an answer, by the version that gives it.
LABELS = {"1.0": 3, "2.0": 2}
BOTH = {"1.0": 200, "2.0": 200}
NOTHING: dict[str, list[str]] = {"canary": [], "shadow": [], "ended": [], "suspended": []}


def test_a_model_has_one_canary_or_one_shadow() -> None:
    with pytest.raises(WrongOption, match="'defects' has two"):
        DoorSettings(canary=(FIVE,), shadow=(FIVE,))
    settings = DoorSettings(canary=(FIVE,)).change_splits([], [TEN], [])
    assert (settings.canary, settings.shadow) == ((), (TEN,))
    assert settings.change_splits([], [], ["defects"]) == DoorSettings()
    with pytest.raises(WrongOption, match="no canary and no shadow"):
        settings.change_splits([], [], ["defcts"])


def test_copies_take_no_room_of_clients() -> None:
    upstreams = Upstreams(True, 32 << 20, 9, 99)
    place = DoorPlace(Path(), Path(), 2 << 30, Path(), "")
    plain = DoorPlan(place, DoorSettings()).count_bodies(upstreams)
    counts = DoorPlan(place, DoorSettings(shadow=(FIVE,))).count_bodies(upstreams)
    assert counts["large"] == plain["large"]
    assert counts["medium"] == tuple(n + COPIES for n in plain["medium"])


def test_prediction_log_tell_a_request_from_its_copy() -> None:
    a, b = [{"event_id": "7", "model": "x", "version": v} for v in ("1.0", "2.0")]
    assert compare(map(name_reply, [a, b]), {"7"}).is_clean
    assert compare(map(name_reply, [a, b, b]), {"7"}).double == ["7"]


def count_slow(metrics_url: str) -> float:
    """Returns the number of answers that took more than 2.5 s, as any that waits for a copy."""
    name = "offpath_request_seconds_bucket_total"
    counts = [sum_metric(metrics_url, name, status="2xx", le=le) for le in ("+Inf", "2.5")]
    return counts[0] - counts[1]


def count_copies(metrics_url: str, status: str) -> float:
    return sum_metric(metrics_url, "offpath_door_copies_total", status=status)


def find_version(reply: httpx.Response) -> str:
    return next(v for v, labels in LABELS.items() if labels == len(reply.json()))


class SplitDoor:
    """A door with two versions of the model `defects`, and a prediction log."""

    def __init__(self, door: FrontProcess, folder: Path) -> None:
        self.door, self._folder = door, folder
        self.url = f"{door.url}/predictions/defects"
        self.answered: list[str] = []

    def predict(self, body: bytes = BODIES[0], path: str = "", user: str | bytes = "") -> str:
        """Returns the version that has answered; each request has its own connection."""
        headers = {"x-user-id": user} if user else {}
        reply = httpx.post(self.url + path, content=body, headers=headers, timeout=30)
        assert reply.status_code == 200, reply.text
        self.answered.append(reply.headers["x-request-id"])
        return find_version(reply)

    def try_predict(self) -> str:
        """Returns the version that has answered, empty where none has."""
        reply = httpx.post(self.url, content=BODIES[0], timeout=30)
        if reply.status_code != 200:
            return ""
        return find_version(reply)

    def change(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `offpath canary`, and waits until no worker of nginx has the old settings."""
        command = [sys.executable, "-m", "offpath", "canary", *arguments]
        command += ["--url", self.door.url]
        before = set(self.door.nginx_workers())
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 and "--json" not in arguments:
            eventually(lambda: not before & set(self.door.nginx_workers()))
        return done

    def in_force(self) -> dict[str, list[str]]:
        """Returns what `offpath canary` shows."""
        found: dict[str, list[str]] = json.loads(self.change("--json").stdout)
        return found

    def records(self, *ids: str) -> dict[str, dict[str, int]]:
        """Returns the statuses of the records in the spool, by id and version."""
        found: dict[str, dict[str, int]] = {}
        for path in (self._folder / "spool").rglob("*.spool"):
            for line in path.read_bytes().splitlines():
                record = json.loads(line)
                if not ids or record["event_id"] in ids:
                    versions = found.setdefault(record["event_id"], {})
                    assert record["version"] not in versions, "recorded twice"
                    versions[record["version"]] = record["status"]
        return found

    def shadow_workers(self) -> list[int]:
        """Returns the process ids of the running workers of version 2.0."""
        management = f"unix:{self.door.run}/management.sock"
        with ManagementClient(management, None) as client:
            statuses = client.describe("defects")
        (shadow,) = (one for one in statuses if one.model_version == "2.0")
        return list(filter(is_alive, shadow.worker_pids))

    def gets_copies(self) -> bool:
        """Tells whether a request has its own record and that of its copy."""
        self.predict()
        time.sleep(0.5)  # what a copy takes; the next request tries again
        return self.records(self.answered[-1]).get(self.answered[-1]) == BOTH

    @contextmanager
    def stopped_shadow(self) -> Iterator[None]:
        """Stops the workers of version 2.0 for a while."""
        pids = self.shadow_workers()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):  # Granian has replaced it
                    os.kill(pid, signal.SIGCONT)

    def check_load(self, seen: Seen) -> None:
        """Checks that nobody noticed anything, and that each request has its own record."""
        print(f"{seen}, slowest {max(reply.took_s for reply in seen.replies):.2f} s")
        assert set(seen.statuses) == {200} and not seen.broken and not seen.refused
        records = self.records()
        assert all(records[one]["1.0"] == 200 for one in seen.answered)
        # A copy's error is not taken for the request's.
        assert set(read_counts(self.door.metrics_url)) == {("200", "")}
        eventually(lambda: not list(self.door.bodies.iterdir()))


@pytest.fixture(
    scope="module", params=["granian", pytest.param("torchserve", marks=pytest.mark.slow)]
)
def split(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SplitDoor]:
    """A door with a version that answers beside the first one, and one that only fails."""
    folder = tmp_path_factory.mktemp("splits")
    for version, top_k in LABELS.items():
        made = build(folder, "near-free", "defects", version, top_k=top_k)
        made.rename(folder / f"v{version}.mar")
    (folder / "failing.py").write_text(FAILING)
    made = build(folder, "near-free", "defects", "3.0", code=folder / "failing.py")
    made.rename(folder / "v3.0.mar")
    options = ("v1.0", "v2.0", "v3.0", "--canary", "defects=2.0:40%", "--canary-by", "x-user-id")
    run = FRONTS[request.param]
    with run(folder, folder / "logs", *options, **log_variables(folder)) as door:
        yield SplitDoor(door, folder)


@pytest.mark.server
@pytest.mark.slow
class TestDoor:
    """These tests come first, while no request has failed, and in this order."""

    def test_a_user_keeps_the_version_and_the_canary_while_its_share_grows(
        self, split: SplitDoor
    ) -> None:
        users = [f"user-{n}" for n in range(60)]
        first = {user: split.predict(user=user) for user in users}
        assert {user: split.predict(user=user) for user in users} == first
        canary = {user for user in users if first[user] == "2.0"}
        assert 10 <= len(canary) <= 38  # 24 of 60, four standard deviations
        assert split.predict(path="/1.0", user=min(canary)) == "1.0"
        assert split.predict(path="/2.0", user=min(set(users) - canary)) == "2.0"
        assert split.change("defects=2.0:70%").stdout.startswith("canary: defects=2.0:70%")
        more = {user for user in users if split.predict(user=user) == "2.0"}
        assert canary < more < set(users)
        # A hostile value keeps its version too.
        for user in (b"\xff\x80", b"u" * 1500, b"$uri\"';{}", b"..%0d%0a"):
            assert len({split.predict(user=user) for _ in range(3)}) == 1
        # Without the header, the address decides.
        assert len({split.predict() for _ in range(10)}) == 1
        eventually(lambda: set(split.records()) >= set(split.answered))

    def test_a_copy_finds_its_body_after_the_answer_and_the_body_goes_then(
        self, split: SplitDoor
    ) -> None:
        done = split.change("--shadow", "defects=2.0:100%")
        assert done.returncode == 0
        # A model has one of them, and that is said.
        assert "ended: canary defects=2.0:70%" in done.stdout
        with split.stopped_shadow():
            assert [split.predict(body) for body in BODIES] == ["1.0", "1.0"]
            ids = split.answered[-2:]
            # The clients have left, and the shadow has not begun.
            assert split.records(*ids) == dict.fromkeys(ids, {"1.0": 200})
            assert len(list(split.door.bodies.iterdir())) == 2
        eventually(lambda: split.records(*ids) == dict.fromkeys(ids, BOTH))
        eventually(lambda: not list(split.door.bodies.iterdir()))

    def test_a_reload_keeps_the_shadow(self, split: SplitDoor) -> None:
        done = split.door.reload()
        assert done.returncode == 0, done.stderr
        split.predict()
        one = split.answered[-1]
        eventually(lambda: split.records(one)[one] == BOTH)

    def test_a_shadow_that_hangs_and_is_full_holds_no_answer(self, split: SplitDoor) -> None:
        """More clients than copies may wait; each delay is shorter than the copies' time-out."""
        eventually(split.gets_copies)
        before = count_slow(split.door.metrics_url)
        with split.stopped_shadow():
            assert split.predict() == "1.0"
            eventually(lambda: count_copies(split.door.metrics_url, "504") > 0)
        assert count_copies(split.door.metrics_url, "200") > 0
        # The time of the copy is not the request's.
        assert count_slow(split.door.metrics_url) == before
        eventually(split.gets_copies)
        clients = load(split.url, BODIES[:1], clients=COPIES + 8)
        with split.stopped_shadow(), clients as seen:
            eventually(lambda: count_copies(split.door.metrics_url, "502") > 0)
            assert split.door.is_healthy()
        split.check_load(seen)


def read_of_failing(door: FrontProcess, name: str, **labels: str) -> float:
    """Returns a number on the door's /metrics about version 3.0."""
    of_failing = {"model": "defects", "version": "3.0", **labels}
    return sum_metric(door.metrics_url, f"offpath_door_canary_{name}", **of_failing)


@guarantee("A canary that only fails")
@pytest.mark.server
def test_a_canary_that_only_fails_gets_nothing_until_the_next_command(split: SplitDoor) -> None:
    door, all_of_it = split.door, "defects=3.0:100%"
    with load(split.url, BODIES[:1], clients=4, pause_s=0.05) as seen:
        assert split.change(all_of_it).returncode == 0
        eventually(lambda: f"canary {all_of_it} is suspended" in door.errors())
        suspended = split.in_force()["suspended"]
        count = len(seen.answered)
        eventually(lambda: len(seen.answered) > count + 20)
        assert door.is_healthy()
    print(seen)
    assert suspended == [f"{all_of_it}: it has answered none of its last requests"]
    assert set(seen.statuses) == {200, 500} and not seen.broken
    failed = seen.statuses[500]
    eventually(lambda: read_of_failing(door, "responses_total", status="500") == failed)
    assert read_of_failing(door, "suspended") == 1
    assert split.predict() == "1.0"
    # The same command lets it try again.
    assert split.change(all_of_it).returncode == 0
    assert split.in_force() == {**NOTHING, "canary": [all_of_it]}
    assert httpx.post(split.url, content=BODIES[0]).status_code == 500
    eventually(lambda: read_of_failing(door, "suspended") == 0)
    assert split.change("--stop", "defects").returncode == 0


@contextmanager
def without_workers(split: SplitDoor) -> Iterator[None]:
    """Keeps version 2.0 without a READY worker for a while."""
    if supervisors := split.door.supervisors():
        command = psutil.Process(*supervisors).cmdline()
        run = Path(command[command.index("--run") + 1])
        unpacked = sorted(run.glob("model-*"), key=lambda path: int(path.name[6:]))[1]
        hidden = unpacked.rename(run / "hidden")
        unpacked.touch()  # a file, in whose place no worker can unpack the archive again
        for pid in split.shadow_workers():
            os.kill(pid, signal.SIGKILL)
        yield
        unpacked.unlink()
        hidden.rename(unpacked)
        return
    # Java unpacks the archive where nobody finds it, but can be told to have no workers.
    management = f"unix:{split.door.run}/management.sock"
    for workers in (0, 1):
        numbers = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        change_models(management, "PUT", "/models/defects/2.0", **numbers)
        if not workers:
            yield


@pytest.mark.server
def test_a_canary_without_a_ready_worker_gets_nothing_until_it_has_one(split: SplitDoor) -> None:
    door = split.door
    assert split.change("defects=2.0:100%").returncode == 0
    assert split.predict() == "2.0"
    with without_workers(split):
        eventually(lambda: "canary defects=2.0:100% is suspended" in door.errors())
        suspended = split.in_force()["suspended"]
        assert suspended == ["defects=2.0:100%: no worker of it is READY"]
        eventually(lambda: [split.try_predict() for _ in range(8)] == ["1.0"] * 8)
        assert door.is_healthy()
    eventually(lambda: split.try_predict() == "2.0")
    assert split.in_force() == {**NOTHING, "canary": ["defects=2.0:100%"]}
    assert "canary defects=2.0:100% gets requests again" in door.errors()


@pytest.mark.server
def test_requests_of_kserve_are_split_and_each_of_their_images_is_recorded(
    split: SplitDoor,
) -> None:
    if not split.door.supervisors():
        pytest.skip("before TorchServe the door has no paths of KServe")
    url, text = split.door.url, base64.b64encode(BODIES[0]).decode()
    image = {"name": "image", "shape": [2], "datatype": "BYTES", "data": 2 * [text]}
    body = {"instances": 2 * [text], "inputs": [image]}
    paths = ("/v1/models/defects:predict", "/v2/models/defects/infer")

    def ask() -> list[httpx.Response]:
        return [httpx.post(url + path, json=body) for path in paths]

    assert split.change("--shadow", "defects=2.0:100%").returncode == 0
    for reply in ask():
        own_id = reply.headers["x-request-id"]
        assert reply.json().get("id", own_id) == own_id
        ids = [f"{own_id}.{number}" for number in (0, 1)]
        eventually(lambda: split.records(*ids) == dict.fromkeys(ids, BOTH))
    assert split.change("defects=2.0:100%").returncode == 0
    v1, v2 = (reply.json() for reply in ask())
    assert len(v1["predictions"][0]) == LABELS["2.0"] and v2["model_version"] == "2.0"
    fixed = httpx.post(f"{url}/v2/models/defects/versions/1.0/infer", json=body).json()
    assert fixed["model_version"] == "1.0"
