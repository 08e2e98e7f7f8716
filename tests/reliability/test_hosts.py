"""Two TorchServe hosts, each in a network namespace of its own, behind one `offpath front`.

pytest -m reliability -s tests/reliability/test_hosts.py
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from offpath.profiling.servers.confined import confine, why_no_namespace
from offpath.profiling.servers.launched import answers, is_ok
from offpath.serving.front.bodies import SHM
from offpath.serving.front.upstream import MOST_TRIES
from offpath.serving.ports import resolve_ports
from tests.serving.front.test_door_lifecycle import BODIES, PATH, SETTLE_S
from tests.support.front import (
    Seen,
    load,
    log_variables,
    read_event_ids,
    wait_until,
)

ROUNDS = int(os.environ.get("OFFPATH_HOST_ROUNDS", "10"))
ROLLS = 2
START_TIMEOUT_S = 120
# Until the door has seen a /ping, and has taken it over.
NOTICED_S = 3.0
AFTER_RETURN_S = 5.0

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.timeout(120 * ROUNDS + 600),
    pytest.mark.skipif(why_no_namespace() is not None, reason=str(why_no_namespace())),
]


class Host:
    """`offpath serve --front` in a network namespace; its one way in is a port of our loopback."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.port, self._inner = resolve_ports("127.0.0.1", [0, 0])
        self._store = store
        self.name = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Until it is READY."""
        # What a machine's end takes with it.
        self._tmp = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
        self._memory = Path(tempfile.mkdtemp(prefix="offpath-test-", dir=SHM))
        options = ["--front-memory", str(self._memory), "--log-dir"]
        options += [str(self.folder / "logs"), "--client-ids", "--metrics-port", "0"]
        command = [sys.executable, "-m", "offpath", "serve", "near-free", "--front"]
        command += ["--model-store", str(self._store), "--port", str(self._inner)]
        with open(self.folder / "out", "ab") as out:
            self._process = subprocess.Popen(
                confine(
                    Path(sys.executable), self.port, self._inner, command + options
                ),
                env={**os.environ, "TMPDIR": str(self._tmp)}
                | log_variables(self.folder),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        is_ready = is_ok(f"http://{self.name}/ping")
        wait_until(lambda: answers(is_ready), START_TIMEOUT_S)

    def kill(self) -> None:
        """Everything that runs on it, at once, as a power cut does."""
        mine = os.stat(f"/proc/{self._process.pid}/ns/net").st_ino
        while pids := [p for p in psutil.pids() if network_of(p) == mine]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait()
        self._clear()

    def terminate(self) -> None:
        """SIGTERM, until it has answered all and ended."""
        self._process.terminate()
        assert self._process.wait(90) == 0
        self._clear()

    def stop(self) -> None:
        """For the end of a test that failed."""
        if self._process.poll() is None:
            self.kill()

    def _clear(self) -> None:
        shutil.rmtree(self._tmp, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)


def network_of(pid: int) -> int | None:
    """A process's network namespace; None for one that has ended."""
    try:
        is_dead = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return None if is_dead else os.stat(f"/proc/{pid}/ns/net").st_ino
    except (OSError, psutil.Error):
        return None


@contextmanager
def door_before(hosts: list[Host], folder: Path) -> Iterator[str]:
    """`offpath front`; yields its URL."""
    upstreams = [word for host in hosts for word in ("--upstream", host.name)]
    command = [sys.executable, "-m", "offpath", "front", "--port", "0", "--json"]
    with open(folder / "front.err", "wb") as errors:
        process = subprocess.Popen(
            [*command, *upstreams], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["inference"]
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        print(f"\n{(folder / 'front.err').read_text()}")


@pytest.fixture
def hosts(model_store: Path, tmp_path: Path) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        hosts = [Host(model_store, tmp_path / name) for name in ("first", "second")]
        for host in hosts:
            stack.callback(host.stop)
            host.start()
        yield hosts


def check_logs(hosts: list[Host], seen: Seen) -> str:
    """Each answered request is in one of the two logs, once; what else is there is an attempt
    at one of them that nobody got an answer of."""
    ids: Counter[str] = Counter()
    for host in hosts:
        ids += read_event_ids(host.folder)
    answered = set(seen.answered)
    assert len(answered) == len(seen.answered)
    missing = answered - ids.keys()
    double = [i for i, n in ids.items() if n > 1]
    assert (len(missing), double) == (0, [])
    requests = Counter(event_id.partition("~")[0] for event_id in ids)
    assert max(requests.values()) <= MOST_TRIES
    others = ids.keys() - answered
    assert {i.partition("~")[0] for i in others} <= {
        i.partition("~")[0] for i in answered
    }
    return (
        f"{len(answered)} answered, {sum(ids.values())} records in both logs: 0 missing, 0 double, "
        f"{len(others)} of attempts that were not answered"
    )


def check_seen(seen: Seen) -> None:
    assert set(seen.statuses) == {200} and not seen.broken and not seen.refused


def p99_ms(took: list[float]) -> float:
    return 1e3 * float(np.percentile(took, 99)) if took else float("nan")


def describe_returns(seen: Seen, returns: list[float]) -> str:
    """Whether a host that has just started answers slower: what slow start would be for."""
    after, rest = [], []
    for at, seconds in seen.took:
        is_after = any(0 <= at - back < AFTER_RETURN_S for back in returns)
        (after if is_after else rest).append(seconds)
    return (
        f"p50, p99 ms in the {AFTER_RETURN_S:g} s after a return "
        f"{1e3 * float(np.median(after)):.0f}, {p99_ms(after):.0f}; else "
        f"{1e3 * float(np.median(rest)):.0f}, {p99_ms(rest):.0f}"
    )


def test_a_host_killed_under_load_fails_no_request(
    hosts: list[Host], tmp_path: Path
) -> None:
    returns = []
    with door_before(hosts, tmp_path) as url:
        with load(url + PATH, BODIES, pause_s=0.02) as seen:
            for number in range(ROUNDS):
                time.sleep(SETTLE_S)
                host = hosts[number % 2]
                host.kill()
                time.sleep(SETTLE_S)
                host.start()
                returns.append(time.monotonic())
                time.sleep(NOTICED_S)
    for host in hosts:
        host.terminate()
    print(f"\n{ROUNDS} hosts killed: {seen}; {check_logs(hosts, seen)}")
    print(describe_returns(seen, returns))
    check_seen(seen)


def test_hosts_restarted_one_after_the_other_fail_no_request(
    hosts: list[Host], tmp_path: Path
) -> None:
    returns = []
    with door_before(hosts, tmp_path) as url:
        with load(url + PATH, BODIES, pause_s=0.02) as seen:
            for host in ROLLS * hosts:
                time.sleep(SETTLE_S)
                host.terminate()
                host.start()
                returns.append(time.monotonic())
                time.sleep(NOTICED_S)
    for host in hosts:
        host.terminate()
    print(f"\n{ROLLS} rolling restarts: {seen}; {check_logs(hosts, seen)}")
    print(describe_returns(seen, returns))
    check_seen(seen)
