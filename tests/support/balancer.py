"""A load balancer with health checks: the HAProxy that Ray ships."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# A host that fails one check gets no more requests. If a host refuses the connection, nothing was
# sent, and the request goes to the next host.
CONFIG = """
global
    maxconn 1000
    stats socket {folder}/admin.sock mode 600
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    option redispatch 1
    balance leastconn
frontend all
    bind {address}:{port}
    default_backend hosts
backend hosts
    option httpchk GET /-/healthz
    default-server check inter 500ms fall 1 rise 2
"""


@contextmanager
def balancer(
    program: Path, folder: Path, address: str, port: int, hosts: Mapping[str, str]
) -> Iterator[str]:
    """Runs the balancer in front of `hosts` (name -> address and port); yields its URL."""
    config = folder / "balancer.cfg"
    text = CONFIG.format(folder=folder, address=address, port=port)
    text += "".join(f"    server {name} {host}\n" for name, host in hosts.items())
    config.write_text(text)
    with open(folder / "balancer.log", "wb") as log:
        process = subprocess.Popen([str(program), "-db", "-f", str(config)], stdout=log, stderr=log)
    try:
        yield f"http://{address}:{port}"
    finally:
        process.terminate()
        process.wait()
