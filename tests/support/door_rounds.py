"""Kills and reloads of a front door under load."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.eventually import eventually
from tests.support.front import FrontProcess, Seen
from tests.support.images import jpeg

PATH = "/predictions/near-free"
# Both roads.
BODIES = [jpeg(size=(500, 333)), jpeg(size=(2048, 1365))]
# Between a client's requests while a server starts, which shares two cores with the load.
PAUSE_S = 0.05


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_worker(door: FrontProcess) -> None:
    kill(door.python_workers()[0])


def kill_server(door: FrontProcess) -> None:
    kill(door.servers()[0])


def kill_nginx_worker(door: FrontProcess) -> None:
    kill(door.nginx_workers()[0])


def kill_nginx(door: FrontProcess) -> None:
    kill(door.children("nginx")[0])


# The server comes last.
KILLS = [kill_worker, kill_nginx_worker, kill_nginx, kill_server]


def answer_some(seen: Seen, more: int = 20) -> None:
    """Waits until this many further requests have been answered."""
    before = len(seen.answered)
    eventually(lambda: len(seen.answered) >= before + more)


def run_kill_round(door: FrontProcess, kill_one: Callable[[FrontProcess], None]) -> Seen:
    """Kills a process under load, and waits until all is well again."""
    with door.load(PATH, BODIES) as seen:
        answer_some(seen)
        before = processes(door)
        kill_one(door)
        seen.pause_s = PAUSE_S
        eventually(lambda: before - processes(door))
        eventually(lambda: door.is_healthy() and len(processes(door)) == len(before))
        answer_some(seen)
    eventually(lambda: not list(door.bodies.iterdir()))
    return seen


def processes(door: FrontProcess) -> set[int]:
    """Returns the server, its workers, nginx and its workers."""
    nginx = [*door.children("nginx"), *door.nginx_workers()]
    return {*door.servers(), *door.python_workers(), *nginx}


@contextmanager
def replaced(archive: Path, content: bytes) -> Iterator[None]:
    """Puts another archive in an archive's place for a while."""
    good = archive.read_bytes()
    try:
        # Another file: TorchServe reads the one it has open no more.
        archive.unlink()
        archive.write_bytes(content)
        yield
    finally:
        archive.unlink()
        archive.write_bytes(good)


def begin_reload(door: FrontProcess) -> subprocess.Popen[str]:
    """Starts a reload and waits until it has read the archives."""
    old = set(door.python_workers())
    process = door.begin_reload()
    eventually(lambda: bool(set(door.python_workers()) - old))
    return process


def count_labels(door: FrontProcess) -> int:
    """Returns the number of labels in an answer; archives here differ in it."""
    reply = httpx.post(door.url + PATH, content=BODIES[0], timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    return len(reply.json())


def check_no_reload(door: FrontProcess) -> None:
    """Checks that `offpath reload` finds that the door has ended."""
    done = door.reload()
    assert done.returncode == 1 and not done.stdout
    assert "no `offpath serve --front` runs" in done.stderr
