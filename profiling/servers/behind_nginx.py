"""Rivals behind an nginx, as one sets them up for clients on a network.

nginx gives them what our front door gives without TLS: a limit for bodies, which it reads to their
end before the server sees them, and one token. It gives no queue limit, no draining reload and no
copy-free hand-over of bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from offpath.errors import ExpectedError
from offpath.profiling.load.generators import Call
from offpath.profiling.load.load_window import RunningServer
from offpath.profiling.servers.server_adapter import PackagedAdapter
from offpath.profiling.servers.server_process import is_ok, start_process
from offpath.profiling.servers.torchserve import NGINX
from offpath.serving.front.nginx import find_nginx
from offpath.serving.process.ports import resolve_ports
from offpath.serving.server.server_settings import LOOPBACK

TOKEN = "Bearer benchmark"
READY = "/nginx-is-ready"
# Bodies stay in memory: by default nginx writes those above 16 kB to a disk.
CONFIG = Template("""\
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes auto;
events { worker_connections 4096; }
http {
    access_log off;
    client_max_body_size 20m;
    client_body_buffer_size 20m;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    scgi_temp_path scgi;
    uwsgi_temp_path uwsgi;
    map $$http_authorization $$may {
        default 0;
        "$token" 1;
    }
    upstream rival {
        least_conn;
        server $rival;
        keepalive 64;
    }
    server {
        listen $address;
        location = $ready { return 200; }
        location / {
            if ($$may = 0) { return 401; }
            proxy_pass http://rival;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 120s;
        }
    }
}
""")


class BehindNginx(PackagedAdapter):
    """Mixed into a packaged server: puts nginx before it."""

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "front": f"nginx {find_nginx().version_text}"}

    def why_not(self) -> str | None:
        try:
            find_nginx()
        except ExpectedError as error:
            return str(error)
        return super().why_not()

    @property
    def call(self) -> Call:
        call = super().call
        return replace(call, headers={**call.headers, "Authorization": TOKEN})

    @contextmanager
    def running(self, folder: Path) -> Iterator[RunningServer]:
        (port,) = resolve_ports(LOOPBACK, [0])
        address = f"{LOOPBACK}:{port}"
        with super().running(folder) as server, TemporaryDirectory(prefix="offpath-") as scratch:
            rival, slash, path = server.predict_url.removeprefix("http://").partition("/")
            config = Path(scratch) / "nginx.conf"
            config.write_text(
                CONFIG.substitute(token=TOKEN, rival=rival, address=address, ready=READY)
            )
            command = [str(find_nginx().path), "-p", scratch, "-c", str(config), "-e", "stderr"]
            is_ready = is_ok(f"http://{address}{READY}")
            log = server.log_path.with_name("nginx.log")
            with start_process(
                f"{self.name}'s nginx", command, log, is_ready, scratch=config.parent
            ) as nginx:
                yield replace(
                    server,
                    predict_url=f"http://{address}{slash}{path}",
                    groups=lambda: {
                        **server.groups(),
                        NGINX: [one.pid for one in nginx.members()],
                    },
                    is_running=lambda: server.is_running() and nginx.is_running(),
                )
