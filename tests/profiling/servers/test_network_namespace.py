from __future__ import annotations

import sys
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.profiling.servers.network_namespace import confine, why_no_namespace
from offpath.profiling.servers.server_process import is_ok, start_process
from offpath.serving.process.ports import resolve_ports
from tests.support.eventually import eventually

pytestmark = pytest.mark.skipif(why_no_namespace() is not None, reason=str(why_no_namespace()))

# Listens on all addresses, and answers with where it listens.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.reply(open("/proc/net/tcp").read())
    def reply(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def confined(tmp_path):
    (port,) = resolve_ports("127.0.0.1", [0])
    command = [sys.executable, "-c", SERVER, str(port)]
    url = f"http://127.0.0.1:{port}/"
    # Our own code is imported from here.
    with start_process(
        "confined",
        confine(Path(sys.executable), port, port, command),
        tmp_path / "server.log",
        is_ok(url),
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as server:
        yield url, port, server


def test_only_the_relay_is_reachable_from_outside(confined):
    url, port, server = confined
    inside = httpx.get(url, trust_env=False).text
    # 0A is the state LISTEN: all addresses there, loopback alone here.
    assert f"00000000:{port:04X} 00000000:0000 0A" in inside
    outside = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{port:04X} 00000000:0000 0A" in outside
    assert f"00000000:{port:04X} 00000000:0000 0A" not in outside
    pids = [process.pid for process in server.members()]
    assert len(pids) == 2
    server.end()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
