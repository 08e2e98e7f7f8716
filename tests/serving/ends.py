"""Ends a front door under load, and checks what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.front import FrontProcess, Seen

# Not UTF-8, a surrogate and a number beyond Unicode in UTF-8's form, and an escape.
HOSTILE_USER_IDS = (b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\\ud800")


@contextmanager
def last_load(door: FrontProcess, path: str, bodies: list[bytes]) -> Iterator[Seen]:
    """Runs a load during the block, which ends the door.

    All that the door has accepted must be answered, and in the log once. Requests of users with
    hostile ids come first.
    """
    for user_id in HOSTILE_USER_IDS:
        headers = {"X-User-Id": user_id}
        reply = httpx.post(door.url + path, content=bodies[0], headers=headers)
        assert reply.status_code == 200
    with door.load(path, bodies) as seen:
        yield seen
    assert set(seen.statuses) == {200} and seen.refused > 0, seen
    assert seen.broken.total() == seen.new_broken, seen
    assert not door.run.exists() and not door.bodies.exists()
    user_ids = {record["user_id"] for record in door.check_log(door.log_dir.parent)}
    assert HOSTILE_USER_IDS[-1].decode() in user_ids


def check_no_reload(door: FrontProcess) -> None:
    """Checks that `offpath reload` finds that the door has ended."""
    done = door.reload()
    assert done.returncode == 1 and not done.stdout
    assert "no `offpath serve --front` runs" in done.stderr
