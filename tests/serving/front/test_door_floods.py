"""Floods that the front door's nginx bears alone, without a server upstreams it."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest

from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import Nginx
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers
from tests.support.certificates import write_certificate
from tests.support.eventually import eventually

CONNECTIONS, FRAMES = 20, 2000
MAX_GROWTH_BYTES = 30 << 20
HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
# GET https://a/ping, in HPACK (RFC 7541, appendix A).
REQUEST = b"\x82\x87\x04\x05/ping\x01\x01a"
# A field of 1,900 bytes that goes into the table of names, and one byte that repeats it.
FIELD, REPEATED = b"\x40\x01x\x7f\xed\x0d" + b"v" * 1900, b"\xbe"


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def continue_for_ever() -> Iterator[bytes]:
    yield frame(HEADERS, END_STREAM, 1, REQUEST)
    for _ in range(FRAMES):
        yield frame(CONTINUATION, 0, 1, b"\x00\x01x\x7f\x81\x1f" + b"v" * 4096)


def repeat_a_field() -> Iterator[bytes]:
    yield frame(HEADERS, END_STREAM | END_HEADERS, 1, REQUEST + FIELD)
    for number in range(FRAMES // 100):
        block = REQUEST + REPEATED * 16_000
        yield frame(HEADERS, END_STREAM | END_HEADERS, 3 + 2 * number, block)


def reset_rapidly() -> Iterator[bytes]:
    for number in range(FRAMES):
        stream = 1 + 2 * number
        yield frame(HEADERS, END_STREAM | END_HEADERS, stream, REQUEST)
        yield frame(RST_STREAM, 0, stream, bytes(4))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Runs a door with TLS, whose nginx is taken for one that may speak HTTP/2."""
    folder = tmp_path_factory.mktemp("floods")
    tls = dict(zip(("tls_cert", "tls_key"), write_certificate(folder)))
    options = {
        "upstreams": {"hand_over": True},
        "version": (1, 31, 9),
        "client_timeout_s": 3,
        **tls,
    }
    with door_before_answers(folder, **options) as (running, _):  # type: ignore[arg-type]
        eventually(lambda: is_served(running.settings))
        yield running


def is_served(settings: DoorSettings) -> bool:
    with suppress(httpx.TransportError):
        url = f"https://127.0.0.1:{settings.port}/live"
        return httpx.get(url, verify=False, trust_env=False).status_code == 200
    return False


def connect(settings: DoorSettings, protocol: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(settings.tls_cert))
    context.set_alpn_protocols([protocol])
    connection = socket.create_connection(("127.0.0.1", settings.port), timeout=10)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def read_memory(nginx: Nginx) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in nginx.worker_pids())


@guarantee(
    "Floods of HTTP/2 and of idle connections",
    "serving/conf/nginx.conf",
    "large_client_header_buffers 2 2k;",
    "large_client_header_buffers 64 1m;",
)
@pytest.mark.parametrize("flood", [continue_for_ever, repeat_a_field, reset_rapidly])
def test_a_flood_of_http_2_frames_takes_no_memory_and_no_answer(door, flood) -> None:
    settings, nginx = door.settings, door.nginx
    before = read_memory(nginx)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(connect(settings, "h2"))
            assert connection.selected_alpn_protocol() == "h2"
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
            with suppress(OSError):  # nginx ends it
                for sent in flood():
                    connection.sendall(sent)
            assert is_served(settings)
        assert read_memory(nginx) - before < MAX_GROWTH_BYTES


@guarantee("Floods of HTTP/2 and of idle connections")
def test_idle_connections_to_metrics_leave_answers_to_others(door) -> None:
    settings = door.settings
    address = ("127.0.0.1", settings.metrics_port)
    with ExitStack() as stack:
        for _ in range(2500):
            stack.enter_context(socket.create_connection(address))
        url = f"http://127.0.0.1:{settings.metrics_port}/metrics"
        assert httpx.get(url, trust_env=False).status_code == 200
        assert is_served(settings)


@guarantee(
    "Floods of HTTP/2 and of idle connections",
    "serving/conf/nginx.conf",
    "client_body_in_file_only clean;",
    "client_body_in_file_only on;",
)
def test_uploads_that_stop_one_byte_early_leave_no_body(door) -> None:
    settings, bodies = door.settings, door.place.bodies
    head = "POST /predictions/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(120):
            connection = stack.enter_context(connect(settings, "http/1.1"))
            connection.sendall(head.encode() + bytes(499_999))
        assert is_served(settings)
    eventually(lambda: not [path for path in bodies.rglob("*") if path.is_file()])
