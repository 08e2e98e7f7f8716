"""What stands behind a door, and nginx's lines for it: one server of our own, or several hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.serving.torchserve.server_settings import CONF_DIR

OWN_TEMPLATE = CONF_DIR / "nginx-torchserve.conf"
HOSTS_TEMPLATE = CONF_DIR / "nginx-hosts.conf"
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([1-9][0-9]{0,4})")
# With two hosts dead a third one answers; a request that ends hosts ends no more than so many.
MOST_TRIES = 3
OWN = """\
# A link, which a reload turns to another TorchServe. No more requests than its queue holds:
# what it would refuse with a misleading text, we refuse with ours.
server unix:{run}/inference.sock max_conns={queue};
# So that all have left an old TorchServe soon after the link was turned.
keepalive_time 2s;
keepalive_timeout 2s;"""
HOSTS = """\
# The host with the fewest requests: one that has just started, and whose Java is not yet compiled,
# gets as many as it answers.
least_conn;
# Three failures, and it is left alone for two seconds; what failed goes to another one. `backup`:
# its /ping has failed, it is asked when no other can be.
{servers}
# Less than a host's own door (75 s) keeps them.
keepalive_timeout 60s;"""


@dataclass(frozen=True)
class Behind:
    """What the door has to know of the servers behind it.

    Attributes:
        hand_over: every archive's handler takes bodies by name.
        max_body_bytes: TorchServe's limit.
        answer_timeout_s: how long an answer may take; of several hosts, before another is asked.
        queue: requests that TorchServe holds, or each of the hosts.
        hosts: HOST:PORT of servers on other machines; none: one of our own, over a socket.
        unwell: those of them that are asked when no other can be.
        only_model: where /invocations leads; None: nowhere.
    """

    hand_over: bool
    max_body_bytes: int
    answer_timeout_s: int
    queue: int
    hosts: tuple[str, ...] = ()
    unwell: frozenset[str] = frozenset()
    only_model: str | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            if HOST.fullmatch(host) is None:
                raise ExpectedError(f"--upstream {host!r}: expected HOST:PORT")
        if len(set(self.hosts)) < len(self.hosts):
            raise ExpectedError("--upstream: each host once")


def upstream_values(behind: Behind, run: Path) -> dict[str, str]:
    """Values of the templates that differ between one server of our own and several hosts."""
    if not behind.hosts:
        servers = OWN.format(run=run, queue=behind.queue)
        return {"servers": servers, "id_of_host": ""}
    # Where all are unwell, none is: nginx wants one that is no backup.
    spare = behind.unwell if behind.unwell < set(behind.hosts) else frozenset()
    lines = [
        f"server {host} max_fails=3 fail_timeout=2s max_conns={behind.queue}"
        f"{' backup' if host in spare else ''};"
        for host in behind.hosts
    ]
    return {
        "servers": HOSTS.format(servers="\n".join(lines)),
        "id_of_host": '"~." $upstream_http_x_request_id;',
        "tries": str(min(MOST_TRIES, max(2, len(behind.hosts)))),
    }
