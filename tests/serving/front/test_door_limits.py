"""The memory that one client and all clients may take at a door, and who counts as one client."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from offpath.handler.wire_names import CLIENT_HEADER
from offpath.serving.front import nginx_config
from offpath.serving.front.door import Door
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers
from tests.support.eventually import eventually

FIREWALL = Path(__file__).parents[3] / "deploy" / "firewall" / "offpath.nft"
LARGEST = 32 << 20
# Memory for four of the largest bodies in all and two of one client, which has half of the queue.
ROOM = 16 * LARGEST
LENGTH = f"Content-Length: {LARGEST}"
CHUNKED = "Transfer-Encoding: chunked"
SMALL = "Content-Length: 5"
# Five bytes: all of a small body, or the beginning of a large or chunked one.
BEGINNING = b"1\r\n.\r"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    # A door of its own, because nginx counts closed uploads until it notices their end.
    settings = {"client_connections": 25, "busy_status": 429}
    with door_before_answers(tmp_path, ROOM, **settings) as (running, _):
        yield running


class Upload:
    """A request of which the header and five bytes of the body have been sent."""

    def __init__(self, door: Door, source: str, *lines: str) -> None:
        address = ("127.0.0.1", door.settings.port)
        self.socket = socket.create_connection(address, 10, (source, 0))
        head = ["POST /predictions/m HTTP/1.1", "Host: localhost", *lines, "", ""]
        self.socket.sendall("\r\n".join(head).encode() + BEGINNING)

    def is_waiting(self) -> bool:
        self.socket.settimeout(0.3)
        try:
            return not self.socket.recv(1)
        except TimeoutError:
            return True

    def answer(self) -> tuple[int, str]:
        self.socket.settimeout(10)
        received = self.socket.recv(65536)
        while not received.endswith(b"}"):
            received += self.socket.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body).get("type", "")


@guarantee(
    "Slow clients, half bodies, crowds",
    "serving/conf/nginx.conf",
    "limit_conn {{ size }}_of_one {{ one }};",
    "",
)
@guarantee(
    "The memory for bodies is full",
    "serving/conf/nginx.conf",
    "limit_conn {{ size }}_of_all {{ all }};",
    "",
)
@pytest.mark.parametrize("line", [LENGTH, CHUNKED])
def test_one_client_takes_half_of_the_memory_and_all_take_no_more_than_there_is(
    door: Door, line: str
) -> None:
    uploads = []

    def send(source: str, *lines: str) -> Upload:
        uploads.append(Upload(door, source, *lines))
        return uploads[-1]

    try:
        for source in ("127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"):
            assert send(source, line).is_waiting()
        assert send("127.0.0.2", line).answer() == (429, "TooManyRequests")
        assert send("127.0.0.4", line).answer() == (429, "ServiceUnavailable")
        assert send("127.0.0.2", SMALL).answer() == (200, "")
        uploads[0].socket.close()
        eventually(lambda: send("127.0.0.4", line).is_waiting(), 10)
    finally:
        for upload in uploads:
            upload.socket.close()


@guarantee(
    "No token, or too many requests",
    "serving/conf/nginx.conf",
    "limit_req zone=rates burst={{ settings.client_rate }} nodelay;",
    "limit_req zone=rates burst=100000 nodelay;",
)
def test_too_many_requests_per_second_are_refused(tmp_path: Path) -> None:
    with door_before_answers(tmp_path, client_rate=1) as (door, _):
        url = f"http://127.0.0.1:{door.settings.port}/predictions/m"
        begin_s = time.monotonic()
        answers = [httpx.post(url, content=b"abc", trust_env=False) for _ in range(60)]
        took_s = time.monotonic() - begin_s
    passed = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(passed) + len(refused) == 60 and refused
    # At once as many as in a second, and one.
    assert 2 <= len(passed) <= 2 + took_s + 1
    assert refused[0].json()["type"] == "TooManyRequests"
    assert refused[0].headers["retry-after"] == "1"


@guarantee(
    "Forged headers, names and keys",
    "serving/conf/nginx.conf",
    "proxy_set_header {{ names.CLIENT_HEADER }}",
    "# {{ names.CLIENT_HEADER }}",
)
def test_a_server_hears_of_a_clients_share_from_the_door_alone(tmp_path: Path) -> None:
    forged = {CLIENT_HEADER: "192.0.2.1 1000 1000"}
    with door_before_answers(tmp_path, client_connections=8) as (door, server):
        httpx.post(f"{door.url}/predictions/m", content=b"x", headers=forged, trust_env=False)
        _, headers, _ = server.requests[-1]
    assert headers[CLIENT_HEADER.lower()] == "127.0.0.1 8 50"


@pytest.mark.parametrize(
    ("length", "size"),
    [
        ("0", None),
        ("99999", None),
        ("100000", "small"),
        ("499999", "small"),
        ("500000", "medium"),
        ("3999999", "medium"),
        ("4000000", "large"),
        (str(LARGEST), "large"),
        ("0000055", "large"),
    ],
)
def test_a_body_has_the_size_of_its_length(length: str, size: str | None) -> None:
    template = nginx_config.TEMPLATE.read_text()
    lines = re.findall(r'^        "~(\^.*\$)" (small|medium|"");$', template, re.M)
    found = [name for pattern, name in lines if re.fullmatch(pattern, length)]
    assert (found or ["large"]) == ['""' if size is None else size]


@guarantee(
    "Slow clients, half bodies, crowds",
    "serving/conf/nginx.conf",
    '"~(?s)^(?<offpath_network>.{8}).{8}$" $offpath_network;',
    '"~(?s)^(?<offpath_network>.{16})$" $offpath_network;',
)
def test_addresses_of_one_ipv6_network_are_one_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "nginx.conf"
    real = "set_real_ip_from 127.0.0.1; real_ip_header X-Address;\n    limit_conn_zone "
    text = nginx_config.TEMPLATE.read_text()
    template.write_text(text.replace("limit_conn_zone ", real, 1))
    monkeypatch.setattr(nginx_config, "TEMPLATE", template)
    with door_before_answers(tmp_path / "logs", client_connections=1) as (door, _):
        # 0a is a line end, which a dot does not match by default.
        for one, same, other in (
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"),
            ("2001:db8:a0a:a0a::1", "2001:db8:a0a:a0a::a0a", "2001:db8:a0a:a0b::1"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ):
            waiting = Upload(door, "127.0.0.1", "Content-Length: 9", f"X-Address: {one}")
            assert waiting.is_waiting()
            for address, status in ((same, 429), (other, 200)):
                asked = Upload(door, "127.0.0.1", SMALL, f"X-Address: {address}")
                assert asked.answer()[0] == status, address
                asked.socket.close()
            waiting.socket.close()


def test_the_firewall_rules_are_rules() -> None:
    command = "unshare --map-root-user --net nft --check --file".split()
    if not all(map(shutil.which, ("unshare", "nft"))):
        pytest.skip("unshare or nft is not installed")
    if subprocess.run([*command[:3], "true"]).returncode:
        pytest.skip("network namespaces are not allowed here")
    done = subprocess.run([*command, FIREWALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@guarantee("Slow clients, half bodies, crowds")
def test_the_door_has_more_connections_than_8400_half_headers_take(door: Door) -> None:
    config = (door.place.run / "nginx.conf").read_text()
    (connections,) = re.findall(r"worker_connections (\d+);", config)
    (files,) = re.findall(r"worker_rlimit_nofile (\d+);", config)
    # A request takes two connections and three descriptors.
    assert int(files) >= int(connections) * 1.5
    if int(files) == 32768:  # otherwise this host allows no more
        assert int(connections) == 16384 > 8400
    assert "client_header_timeout 5s;" in config
