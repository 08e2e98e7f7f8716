"""The faults that are injected into a bench, and their reversal."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from offpath.profiling.servers import archives
from offpath.serving.process.processes import find_family, find_fork_helpers
from tests.reliability.fault_bench import BODIES, STAGE_S, Bench
from tests.support.door_rounds import (
    kill_nginx,
    kill_nginx_worker,
    kill_server,
    kill_worker,
)
from tests.support.front import load_for
from tests.support.s3_faults import OUTAGES, PASS, WRONG

Strike = Callable[[Bench], None]
# As many clients as a server with 24 cores would have.
MANY_CLIENTS = 96


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
            assert is_full.wait(STAGE_S)
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


def take_descriptors(find: Callable[[Bench], Iterable[int]]) -> Strike:
    """Takes all free descriptors of some processes for a while."""

    def strike(bench: Bench) -> None:
        before = {}
        for pid in find(bench):
            before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # A new descriptor takes the lowest free number.
            taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
            least = min({*range(len(taken) + 1)} - taken)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (least, before[pid][1]))
        time.sleep(STAGE_S)
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    return strike


def kill_second_server(bench: Bench) -> None:
    """Starts and kills a second server on the same spool; the first server ships its records."""
    server = bench.trial.make_server("second", bench.product)
    with server:
        url = f"{server.inference_url}/predictions/{archives.NAME}"
        seen = load_for(url, BODIES[:1], 2, STAGE_S / 2)
        for process in find_family(server.pid):
            process.kill()
    bench.stages[-1].in_flight.replies += [one for one in seen.replies if one.status == 200]


def crowd(bench: Bench) -> None:
    bench.stages[-1].in_flight += load_for(bench.url, BODIES, MANY_CLIENTS, STAGE_S)


# Faults that no request may notice.
UNNOTICED: dict[str, Strike] = {
    **{f"S3 {mode}": answer_wrongly(mode) for mode in (*OUTAGES, *WRONG)},
    "S3 connections cut": cut_connections,
    "disk full: logs": fill_disk("logs"),
    "disk full: /tmp": fill_disk("tmp"),
    "disk full: /tmp, a reload": fill_disk("tmp", fail_to_replace_model),
    "model replaced": replace_model,
    "two servers, one spool": kill_second_server,
    f"{MANY_CLIENTS} clients": crowd,
}
FORK_SERVER = "SIGKILL fork server"
KILLS: dict[str, Strike] = {
    "SIGKILL worker": lambda bench: kill_worker(bench.door),
    "SIGKILL worker, /tmp full": fill_disk("tmp", lambda b: kill_worker(b.door)),
    FORK_SERVER: kill_fork_server,
    "SIGKILL Java or supervisor": lambda bench: kill_server(bench.door),
    "SIGKILL nginx's worker": lambda bench: kill_nginx_worker(bench.door),
    "SIGKILL nginx": lambda bench: kill_nginx(bench.door),
}
# Faults that cost requests, or records by policy, and that end without help.
COSTLY: dict[str, Strike] = {
    "disk full: spool": fill_disk("spool"),
    "disk full: bodies": fill_disk("memory"),
    "no descriptors: workers": take_descriptors(lambda b: b.door.python_workers()),
    "no descriptors: Java or supervisor": take_descriptors(lambda b: b.door.servers()),
    "no descriptors: nginx": take_descriptors(lambda b: b.door.nginx_workers()),
}
