"""Faults one after the other under load at the front door: which requests fail, what is lost."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.profiling.servers import archives
from offpath.serving.prediction_log.reading import compare
from offpath.serving.process.processes import find_family, find_fork_helpers
from offpath.serving.starting import start_server
from tests.conftest import small_disk
from tests.guarantees import guarantee
from tests.reliability.conftest import LogTrial, load_for
from tests.support.costly import SIDE, progressive_jpeg
from tests.support.echo_archive import make_settings
from tests.support.eventually import MAX_S, eventually
from tests.support.front import BODIES, FRONTS, FrontProcess, Reply, Seen, kill_part, load
from tests.support.s3_faults import OUTAGES, PASS, WRONG

STAGE_S = float(os.environ.get("OFFPATH_FAULT_STAGE_S", "4"))
CLIENTS = 4
# A request that takes a worker about a second, so that it is in flight when a fault strikes.
SLOW = progressive_jpeg(SIDE, 3)
SLOW_CLIENTS = 3
# A file of this size fills the small disks that are mounted for a test.
SMALL = {"spool": "4m", "logs": "4m", "tmp": "64m", "memory": "640m"}
DROPPED = re.compile(r"^offpath_log_dropped_total\{.*\} (\S+)$", re.MULTILINE)
# The workers report their counters every second, after a batch.
COUNTERS_S = 1.5
# Run only the faults whose names contain this text.
CHOSEN = os.environ.get("OFFPATH_FAULTS", "")
pytestmark = [
    pytest.mark.reliability,
    pytest.mark.timeout(1200),
    pytest.mark.parametrize("product", FRONTS),
]


@dataclass
class Stage:
    """A fault and its consequences.

    Attributes:
        in_flight: statuses of the slow requests that were in flight when the fault struck.
        given_up: records that the log counted as dropped.
    """

    name: str
    seen: Seen = field(default_factory=Seen)
    in_flight: Seen = field(default_factory=Seen)
    recovery_s: float = 0.0
    given_up: int = 0

    @property
    def answered(self) -> set[str]:
        return {*self.seen.answered, *self.in_flight.answered}

    @property
    def is_noticed(self) -> bool:
        """Returns whether any request was answered with something other than 200, or not at all."""
        both = (self.seen, self.in_flight)
        return any(set(one.statuses) != {200} for one in both) or any(
            one.broken or one.refused for one in both
        )


@dataclass
class Bench:
    """A front door whose log goes to S3 through a proxy, and its small disks.

    Attributes:
        product: the server behind the door, `torchserve` or `granian`.
    """

    door: FrontProcess
    trial: LogTrial
    folder: Path
    product: str
    stages: list[Stage] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.door.url}/predictions/{archives.NAME}"

    def count_given_up(self) -> int:
        """Counts the records that the workers reported as dropped."""
        text = httpx.get(self.door.metrics_url, trust_env=False).text
        return int(sum(float(number) for number in DROPPED.findall(text)))

    def judge(self) -> tuple[dict[str, int], list[str]]:
        """Prints the table; returns each stage's lost records, beyond the policy's, and doubles."""
        counts = self.trial.bucket.event_counts()
        lost = {}
        print(
            f"\n{self.product}\n| fault | 200 | other | refused | broken | in flight: 200, other |"
            " well again s | no record | given up |\n" + "|---" * 9 + "|"
        )
        for stage in self.stages:
            seen, slow = stage.seen, stage.in_flight
            missing = len(compare(counts.elements(), stage.answered).missing)
            if missing != stage.given_up:
                lost[stage.name] = missing - stage.given_up
            print(
                f"| {stage.name} | {seen.statuses[200]} | {_others(seen)} |"
                f" {seen.refused} | {sum(seen.broken.values())} |"
                f" {slow.statuses[200]}, {_others(slow) + sum(slow.broken.values())} |"
                f" {stage.recovery_s:.1f} | {missing} | {stage.given_up} |"
            )
        double = [event_id for event_id, times in counts.items() if times > 1]
        asked = sum(len(stage.answered) for stage in self.stages)
        print(f"{asked:,} answered; {sum(lost.values())} lost, {len(double)} double")
        return lost, double


def _others(seen: Seen) -> int:
    return sum(n for status, n in seen.statuses.items() if status != 200)


@contextmanager
def open_bench(trial: LogTrial, folder: Path, product: str, **environ: str) -> Iterator[Bench]:
    """Opens a bench whose spool, logs, /tmp and bodies lie on separate, partly small disks."""
    env = {
        **trial.s3.environ,
        "OFFPATH_SPOOL_DIR": str(trial.spool),
        "TMPDIR": str(folder / "tmp"),
        **environ,
    }
    options = [archives.NAME, "--front-memory", str(folder / "memory")]
    run, store = FRONTS[product], trial.archive.parent
    with ExitStack() as stack:
        for name, size in SMALL.items():
            stack.enter_context(small_disk(folder / name, f"size={size}"))
        with run(store, folder / "logs", *options, **env) as door:
            yield Bench(door, trial, folder, product)


@contextmanager
def _in_flight(url: str) -> Iterator[Seen]:
    """Keeps one slow request per client in flight during the block."""
    seen = Seen()

    def post() -> None:
        began_s = time.monotonic()
        try:
            answer = httpx.post(url, content=SLOW, trust_env=False, timeout=60)
        except httpx.HTTPError as error:
            seen.broken[f"{type(error).__name__}: {error}"] += 1
            return
        request_id, took_s = answer.headers.get("x-request-id", ""), time.monotonic() - began_s
        seen.replies.append(Reply(answer.status_code, request_id, began_s, took_s))

    with ThreadPoolExecutor(SLOW_CLIENTS) as pool:
        for _ in range(SLOW_CLIENTS):
            pool.submit(post)
        time.sleep(0.4)
        yield seen


def run_stage(
    bench: Bench, name: str, strike: Callable[[Bench], None], is_kill: bool = False
) -> Stage:
    """Injects the fault while batches are in flight and waits for recovery."""
    workers = len(bench.door.python_workers())
    given_up = bench.count_given_up()
    stage = Stage(name)
    print(f"\n{bench.product}, {name}", end="", flush=True)
    bench.stages.append(stage)
    with load(bench.url, BODIES, clients=CLIENTS, pause_s=0.05) as stage.seen:
        time.sleep(0.5)
        with _in_flight(bench.url) as stage.in_flight:
            start_s = time.monotonic()
            strike(bench)
            if is_kill:
                # Earlier, a supervisor may not have noticed the end of a process.
                time.sleep(1.0)
            else:
                start_s = time.monotonic()
            eventually(
                lambda: bench.door.is_healthy() and len(bench.door.python_workers()) == workers
            )
            before = stage.seen.statuses[200]
            eventually(lambda: stage.seen.statuses[200] > before + 8)
            stage.recovery_s = time.monotonic() - start_s
        # Late consequences of this fault must not count for the next one.
        time.sleep(COUNTERS_S)
    # A killed worker's successor counts from 0.
    stage.given_up = max(0, bench.count_given_up() - given_up)
    return stage


Strike = Callable[[Bench], None]


def kill(part: str) -> Strike:
    return lambda bench: kill_part(bench.door, part)


def kill_fork_server(bench: Bench) -> None:
    (java,) = bench.door.servers()
    helpers = [psutil.Process(pid) for pid in find_fork_helpers(java)]
    (server,) = [p for p in helpers if "fork_server.py" in " ".join(p.cmdline())]
    server.kill()


def replace_model(bench: Bench) -> None:
    assert bench.door.reload().returncode == 0


def answer_wrongly(mode: str) -> Strike:
    def strike(bench: Bench) -> None:
        bench.trial.proxy.set_mode(mode)
        time.sleep(STAGE_S)
        bench.trial.proxy.set_mode(PASS)

    return strike


def cut_connections(bench: Bench) -> None:
    """Cuts the shipper's connections five times per second."""
    for _ in range(int(STAGE_S * 5)):
        bench.trial.proxy.set_mode(PASS)
        time.sleep(0.2)


def fill_disk(name: str, meanwhile: Strike = lambda bench: None) -> Strike:
    """Fills a disk and takes any space that becomes free."""

    def strike(bench: Bench) -> None:
        path, is_over = bench.folder / name / "filler", threading.Event()
        is_full = threading.Event()

        def fill() -> None:
            with open(path, "wb", buffering=0) as file:
                while not is_over.wait(0.005):
                    for size in (1 << 20, 1 << 12):
                        with suppress(OSError):
                            while file.write(bytes(size)) == size:
                                pass
                    is_full.set()

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            assert is_full.wait(MAX_S)
            time.sleep(STAGE_S / 2)
            meanwhile(bench)
            time.sleep(STAGE_S / 2)
        finally:
            is_over.set()
            thread.join()
            path.unlink()

    return strike


def fail_to_replace_model(bench: Bench) -> None:
    """Reloads a model that cannot start: the old one must go on serving."""
    bench.door.reload()


def kill_second_server(bench: Bench) -> None:
    """Starts and kills a second server on the same spool; the first server ships its records."""
    trial = bench.trial
    env = {**trial.s3.environ, "OFFPATH_SPOOL_DIR": str(trial.spool)}
    log_dir = trial.spool.with_name("second")
    settings = make_settings(trial.archive, server=bench.product, log_dir=log_dir, env=env)
    with start_server(settings) as server:
        url = f"{server.inference_url}/predictions/{archives.NAME}"
        seen = load_for(url, BODIES[:1], 2, STAGE_S / 2)
        for process in find_family(server.pid):
            process.kill()
    bench.stages[-1].in_flight.replies += [one for one in seen.replies if one.status == 200]


# Faults that no request may notice.
UNNOTICED: dict[str, Strike] = {
    **{f"S3 {mode}": answer_wrongly(mode) for mode in (*OUTAGES, *WRONG)},
    "S3 connections cut": cut_connections,
    "disk full: logs": fill_disk("logs"),
    "disk full: /tmp": fill_disk("tmp"),
    "disk full: /tmp, a reload": fill_disk("tmp", fail_to_replace_model),
    "model replaced": replace_model,
    "two servers, one spool": kill_second_server,
}
FORK_SERVER = "SIGKILL fork server"
KILLS: dict[str, Strike] = {
    "SIGKILL worker": kill("worker"),
    "SIGKILL worker, /tmp full": fill_disk("tmp", kill("worker")),
    FORK_SERVER: kill_fork_server,
    "SIGKILL Java or supervisor": kill("server"),
    "SIGKILL nginx's worker": kill("nginx_worker"),
    "SIGKILL nginx": kill("nginx"),
}
# Faults that cost requests, or records by policy, and that end without help.
COSTLY: dict[str, Strike] = {
    "disk full: spool": fill_disk("spool"),
    "disk full: bodies": fill_disk("memory"),
}


@guarantee("S3 fails")
@guarantee("The disk of the logs or `/tmp` is full")
@guarantee("The spool or its disk is full")
@guarantee("The memory for bodies is full")
@guarantee("Another server on the same spool dies")
@guarantee("The fork server is killed")
@guarantee("The server is killed")
@guarantee("nginx or its worker is killed")
def test_faults_under_load(trial: LogTrial, tmp_path: Path, product: str) -> None:
    # Granian's workers are forked by its supervisor.
    left_out = {"granian": FORK_SERVER}.get(product)
    with open_bench(trial, tmp_path, product) as bench:
        for name, strike in (UNNOTICED | KILLS | COSTLY).items():
            if CHOSEN in name and name != left_out:
                run_stage(bench, name, strike, is_kill=name in KILLS)
        logs = (tmp_path / "logs").rglob(f"{product}.log")
        log = "".join(path.read_text(errors="replace") for path in logs)
        bench.door.terminate()
        trial.ship()
    lost, double = bench.judge()
    stages = {stage.name: stage for stage in bench.stages}
    assert [n for n in stages if n in UNNOTICED and stages[n].is_noticed] == []
    # Only the full-disk policy may drop records, and it must report them.
    assert (lost, double) == ({}, [])
    given_up = {name for name, one in stages.items() if one.given_up}
    assert given_up <= {"disk full: spool"}
    assert not given_up or "make room there" in log
    assert all(stage.answered for stage in stages.values())


@guarantee("The clock jumps")
def test_faults_a_clock_that_jumps(trial: LogTrial, tmp_path: Path, product: str) -> None:
    """Shifts the clock of the server, its workers and the shipper; S3's and nginx's stay.

    nginx is a static program, which preloads nothing. So the requests have no deadline, for which
    workers compare their clock with nginx's; test_deadline.py moves both.
    """
    shift = tmp_path / "shift"

    def jump(hours: int) -> Strike:
        def strike(bench: Bench) -> None:
            # Written in place, because the file is mapped.
            with open(shift, "r+b") as file:
                file.write(struct.pack("=q", 3600 * hours))
            time.sleep(STAGE_S)

        return strike

    shift.write_bytes(bytes(8))
    variables = shifted_clock(tmp_path, shift)
    with open_bench(trial, tmp_path, product, **variables) as bench:
        for hours in (3, 0, -3, 0, 24 * 400, 0):
            run_stage(bench, f"clock set to {hours:+d} h", jump(hours))
        bench.door.terminate()
        trial.ship()
    lost, double = bench.judge()
    hours_seen = {record["inference_time"][:13] for record in trial.bucket.records()}
    print(f"hours of the records: {sorted(hours_seen)}")
    assert len(hours_seen) > 3, "the clock did not jump"
    assert [stage.name for stage in bench.stages if stage.is_noticed] == []
    assert (lost, double) == ({}, [])


def shifted_clock(folder: Path, shift: Path) -> dict[str, str]:
    """Returns an environment that shifts the wall clock by the seconds in a file."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for tests/reliability/shifted_clock.c")
    source = Path(__file__).with_name("shifted_clock.c")
    library = folder / "shifted_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "OFFPATH_TEST_CLOCK": str(shift)}
