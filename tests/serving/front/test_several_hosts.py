"""nginx as a balancer, with the text of docs/front-door.md, before two doors."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from offpath.serving.front.door import Door
from offpath.serving.front.nginx import find_nginx
from offpath.serving.process.ports import resolve_ports
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers
from tests.support.answering_server import Answers
from tests.support.certificates import write_certificate
from tests.support.eventually import eventually

PAGE = Path(__file__).parents[3] / "docs" / "front-door.md"
TOKEN = "a-token-0123456789"
# In nginx's own memory, and as a file.
BODIES = [b"s" * 5_000, b"l" * 900_000]


class Hosts:
    """Two doors with one file of tokens, before servers with set answers, and a balancer."""

    def __init__(self, folder: Path, end: ExitStack) -> None:
        (folder / "tokens").write_text(TOKEN)
        self.doors, self.servers = list[Door](), list[Answers]()
        for number in range(2):
            # nginx sends the upstream's name as the host; only a door on loopback asks for names.
            settings = {"tokens": folder / "tokens", "allow_host": ("offpath",)}
            running = door_before_answers(folder / str(number), **settings)
            door, server = end.enter_context(running)
            self.doors.append(door)
            self.servers.append(server)
        certificate, key = write_certificate(folder)
        (port,) = resolve_ports("127.0.0.1", [0])
        (block,) = re.findall("```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for old, new in {
            "10.0.0.11:8080": self.doors[0].settings.addresses[0],
            "10.0.0.12:8080": self.doors[1].settings.addresses[0],
            "443": f"127.0.0.1:{port}",
            "chain.pem": str(certificate),
            "key.pem": str(key),
            "250s": "2s",
        }.items():
            assert old in block
            block = block.replace(old, new)
        temp = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        conf = folder / "balancer.conf"
        conf.write_text(
            f"daemon off; user root; pid {folder}/pid; error_log {folder}/log;\n"
            f"events {{}} http {{ access_log off;\n{temp}{block}}}"
        )
        balancer = subprocess.Popen([find_nginx().path, "-e", f"{folder}/log", "-c", str(conf)])
        end.callback(balancer.wait)
        end.callback(balancer.terminate)
        trusted = ssl.create_default_context(cafile=str(certificate))
        self.client = end.enter_context(
            httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, trust_env=False)
        )
        eventually(self.is_up)

    def is_up(self) -> bool:
        try:
            return self.client.get("/ping").status_code == 200
        except httpx.ConnectError:
            return False

    def post(self, body: bytes = b"image", token: str = TOKEN) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.post("/predictions/m", content=body, headers=headers)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ExitStack() as end:
        yield Hosts(tmp_path_factory.mktemp("hosts"), end)


@pytest.fixture
def hosts(running: Hosts) -> Hosts:
    """Returns the hosts, whose servers answer 200 and have got nothing."""
    for server in running.servers:
        server.status = 200
        server.requests.clear()
    return running


@pytest.mark.parametrize("status", [400, 401, 429, 500, 502, 504])
def test_what_a_host_answered_goes_to_no_other(hosts: Hosts, status: int) -> None:
    for server in hosts.servers:
        server.status = status
    token = "another-0123456789" if status == 401 else TOKEN
    assert hosts.post(token=token).status_code == status
    asked = sum(len(server.requests) for server in hosts.servers)
    assert asked == (0 if status == 401 else 1)


@guarantee("A host dies or restarts")
@pytest.mark.parametrize("failing", ["full", "silent", "gone"])
def test_what_one_host_did_not_answer_goes_to_the_other(hosts: Hosts, failing: str) -> None:
    server, other = hosts.servers
    if failing == "gone":  # the last case
        hosts.doors[0].stop()
    server.status = -1 if failing == "silent" else 503
    answers = [hosts.post(body) for body in 3 * BODIES]
    assert Counter(answer.status_code for answer in answers) == {200: 6}
    assert [body for *_, body in other.requests] == 3 * BODIES
    assert bool(server.requests) is (failing != "gone")
