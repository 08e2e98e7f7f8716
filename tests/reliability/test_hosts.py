"""Two hosts of one kind of server, each in its own network namespace, behind one `offpath front`.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from offpath.profiling.servers.confined import (
    NAMESPACE,
    confine,
    raise_loopback,
    why_no_namespace,
)
from offpath.profiling.servers.server_process import answers, is_ok
from offpath.serving.front.bodies import SHM
from offpath.serving.front.nginx_config import MOST_TRIES
from offpath.serving.process.ports import resolve_ports
from tests.conftest import build
from tests.support.door_rounds import BODIES, PATH
from tests.support.eventually import eventually
from tests.support.front import Seen, load, log_variables, read_event_ids
from tests.support.granian import FRONTS

ROUNDS = int(os.environ.get("OFFPATH_HOST_ROUNDS", "10"))
ROLLS = 2
HOLES, CUT_OFF_S = 2, 30.0
START_TIMEOUT_S = 120
# Seconds until the door has seen a /ping and uses the host.
NOTICED_S = 3.0
# Seconds of load before a host is struck, and while it is away.
SETTLE_S = 0.5

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.timeout(120 * ROUNDS + 600),
    pytest.mark.skipif(why_no_namespace() is not None, reason=str(why_no_namespace())),
]


def write_keys(folder: Path) -> list[str]:
    """Writes the key that the hosts and their door share, and returns its option."""
    (folder / "keys").write_text("a-key-of-the-door-0123")
    return ["--front-keys", str(folder / "keys")]


class Host:
    """`offpath serve --front` in a network namespace that is reachable by one loopback port."""

    def __init__(self, store: Path, folder: Path, product: str) -> None:
        self.folder, self._product = folder, product
        folder.mkdir()
        self.port, self._inner = resolve_ports("127.0.0.1", [0, 0])
        self._store = store
        self.name = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the host and waits until it is READY."""
        # Files that are lost with a machine.
        self._tmp = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
        self._memory = Path(tempfile.mkdtemp(prefix="offpath-test-", dir=SHM))
        options = ["--front-memory", str(self._memory), "--log-dir"]
        options += [str(self.folder / "logs"), "--metrics-port", "0"]
        options += write_keys(self.folder.parent)
        command = [sys.executable, "-m", "offpath", "serve", "near-free", "--front"]
        command += ["--model-store", str(self._store), "--port", str(self._inner)]
        command += ["--server", self._product]
        with open(self.folder / "out", "ab") as out:
            self._process = subprocess.Popen(
                confine(Path(sys.executable), self.port, self._inner, command + options),
                env={**os.environ, "TMPDIR": str(self._tmp)} | log_variables(self.folder),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        is_ready = is_ok(f"http://{self.name}/ping")
        eventually(lambda: answers(is_ready), START_TIMEOUT_S)

    def kill(self) -> None:
        """Kills everything on the host at once, like a power cut."""
        mine = os.stat(f"/proc/{self._process.pid}/ns/net").st_ino
        while pids := [p for p in psutil.pids() if network_of(p) == mine]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait()
        self._clear()

    def terminate(self) -> None:
        """Sends SIGTERM and waits until the host has answered everything and ended."""
        self._process.terminate()
        assert self._process.wait(90) == 0
        self._clear()

    def stop(self) -> None:
        """Stops the host at the end of a failed test."""
        if self._process.poll() is None:
            self.kill()

    def _clear(self) -> None:
        shutil.rmtree(self._tmp, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)


def network_of(pid: int) -> int | None:
    """Returns a process's network namespace; None if the process has ended."""
    try:
        is_dead = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return None if is_dead else os.stat(f"/proc/{pid}/ns/net").st_ino
    except (OSError, psutil.Error):
        return None


@contextmanager
def door_before(hosts: list[Host], folder: Path) -> Iterator[str]:
    """Runs `offpath front`; yields its URL."""
    upstreams = [word for host in hosts for word in ("--upstream", host.name)]
    command = [sys.executable, "-m", "offpath", "front", "--port", "0", "--json"]
    command += write_keys(folder)
    command += ["--metrics-port", "0"]
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


@contextmanager
def two_hosts(store: Path, folder: Path, product: str) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        hosts = [Host(store, folder / name, product) for name in ("first", "second")]
        for host in hosts:
            stack.callback(host.stop)
            host.start()
        yield hosts


@pytest.fixture(params=FRONTS)
def product(request: pytest.FixtureRequest) -> str:
    """Returns the server of the hosts."""
    return str(request.param)


@pytest.fixture
def hosts(model_store: Path, tmp_path: Path, product: str) -> Iterator[list[Host]]:
    with two_hosts(model_store, tmp_path, product) as hosts:
        yield hosts


def check_logs(hosts: list[Host], seen: Seen) -> str:
    """Checks that each answered request is in exactly one of the two logs.

    Other records belong to attempts whose answer never arrived."""
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
    assert {i.partition("~")[0] for i in others} <= {i.partition("~")[0] for i in answered}
    return (
        f"{len(answered)} answered, {sum(ids.values())} records in both logs: 0 missing, 0 double, "
        f"{len(others)} of attempts that were not answered"
    )


def strike_under_load(
    hosts: list[Host], folder: Path, turns: list[Host], strike: Callable[[Host], None]
) -> None:
    """Strikes one host after the other and waits for its recovery; no client may notice."""
    with door_before(hosts, folder) as url:
        with load(url + PATH, BODIES, pause_s=0.02) as seen:
            for host in turns:
                time.sleep(SETTLE_S)
                strike(host)
                time.sleep(NOTICED_S)
    for host in hosts:
        host.terminate()
    print(f"\n{len(turns)} times {strike.__name__}: {seen}; {check_logs(hosts, seen)}")
    assert set(seen.statuses) == {200} and not seen.failed


def kill_and_start(host: Host) -> None:
    host.kill()
    time.sleep(SETTLE_S)
    host.start()


def restart(host: Host) -> None:
    host.terminate()
    host.start()


def cut_off(host: Host) -> None:
    """Drops all packets to and from the host: connections hang, nothing is refused."""
    directions = ("--dport", "--sport")
    for direction in directions:
        drop_packets("-I", direction, host.port)
    time.sleep(CUT_OFF_S)
    for direction in directions:
        drop_packets("-D", direction, host.port)


def drop_packets(action: str, direction: str, port: int) -> None:
    rule = ["INPUT", "-i", "lo", "-p", "tcp", direction, str(port), "-j", "DROP"]
    subprocess.run(["iptables", "-w", action, *rule], check=True)


def test_a_host_killed_under_load_fails_no_request(hosts: list[Host], tmp_path: Path) -> None:
    turns = [hosts[number % 2] for number in range(ROUNDS)]
    strike_under_load(hosts, tmp_path, turns, kill_and_start)


def test_hosts_restarted_one_after_the_other_fail_no_request(
    hosts: list[Host], tmp_path: Path
) -> None:
    strike_under_load(hosts, tmp_path, ROLLS * hosts, restart)


@pytest.mark.skipif(shutil.which("iptables") is None, reason="no iptables")
def test_a_host_that_is_cut_off_fails_no_request(product: str) -> None:
    """Runs the test in a namespace in which packets can be dropped."""
    program = [sys.executable, "-m", "tests.reliability.test_hosts", product]
    subprocess.run([*NAMESPACE, *program], check=True)


def main() -> None:
    """Runs the program of the last test."""
    raise_loopback()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        store = build(Path(folder), "near-free", "near-free").parent
        hosts = stack.enter_context(two_hosts(store, Path(folder), sys.argv[1]))
        turns = [hosts[number % 2] for number in range(HOLES)]
        strike_under_load(hosts, Path(folder), turns, cut_off)


if __name__ == "__main__":
    main()
