"""Hostile clients, each kind in its own process: `python -m tests.reliability.attacks URL NAME`.

They connect from 127.0.0.2, so that limits per client tell them from the good clients.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import urlsplit

from offpath.profiling.load.workload import load_workload
from tests.support.costly import MAX_BYTES, PALETTE, damaged_jpeg, png, progressive_jpeg
from tests.support.front import load

ADDRESS = ("127.0.0.2", 0)
TIMEOUT_S = 60.0
MAX_SENDING_S = 20.0


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client.

    Attributes:
        make: makes the request body.
        connections: open at the same time; each waits `pause_s` after an answer and sends again.
        path: used instead of the prediction's path; `{}` is the model's name.
        headers: sent in addition to Content-Length.
        is_half: one half of the body is sent; the rest never comes and the connection stays.
    """

    make: Callable[[], bytes]
    connections: int = 4
    pause_s: float = 0.02
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    is_half: bool = False


URL_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ATTACKS = {
    "broken forms": Attack(lambda: b"%zz=" + b"x" * 129, headers=URL_FORM),
    "JPEG of 16,000 scans": Attack(lambda: progressive_jpeg(1000, 16_000)),
    "20 MB of fill bytes": Attack(
        lambda: b"\xff\xd8" + b"\xff" * (MAX_BYTES - 2), connections=1, pause_s=0.5
    ),
    "explanations": Attack(lambda: progressive_jpeg(300), path="/explanations/{}"),
    "250 uploads stopped at 4 MB": Attack(lambda: bytes(8_000_000), connections=250, is_half=True),
    "damaged JPEG": Attack(
        lambda: damaged_jpeg(progressive_jpeg(2600, 88)), connections=1, pause_s=2.0
    ),
    "PNG of 50 million pixels": Attack(
        lambda: png(7071, 7071, 8, PALETTE, 8, False), connections=1, pause_s=1.0
    ),
    # Granian alone has this path.
    "KServe requests of 100 images": Attack(
        lambda: b'{"instances": ["%b"]}'
        % b'", "'.join(100 * [base64.b64encode(load_workload("photos-55k").read()[0])]),
        connections=10,
        path="/v1/models/{}:predict",
    ),
}


def attack(url: str, name: str) -> None:
    """Attacks until the process is ended; prints one line when the attack has begun."""
    chosen, parts = ATTACKS[name], urlsplit(url)
    body = chosen.make()

    def send_half(connection: HTTPConnection) -> None:
        connection.connect()
        # A body still in transit does not occupy the server yet: wait until it has arrived.
        with contextlib.suppress(OSError):
            length = {"Content-Length": str(len(body))}
            connection.request("POST", parts.path, body[: len(body) // 2], length)

    with contextlib.ExitStack() as stack:
        if chosen.is_half:
            pool = stack.enter_context(ThreadPoolExecutor(chosen.connections))
            options = {"timeout": MAX_SENDING_S, "source_address": ADDRESS}
            held = [HTTPConnection(parts.netloc, **options) for _ in range(chosen.connections)]
            list(pool.map(send_half, held))
        else:
            path = chosen.path.format(parts.path.rpartition("/")[2]) or parts.path
            address = parts._replace(path=path).geturl()
            clients = (chosen.connections, chosen.pause_s)
            hostile = {"source": ADDRESS, "headers": chosen.headers, "timeout_s": TIMEOUT_S}
            stack.enter_context(load(address, [body], *clients, **hostile))
        print("begun", flush=True)
        signal.pause()


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2])
