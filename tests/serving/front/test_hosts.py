"""A door before several hosts, which are small servers with set answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from offpath.errors import ExpectedError
from offpath.serving.front import reply_counts
from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx_config import MOST_TRIES
from offpath.serving.front.several_hosts import MISSES, SeveralHostsSession
from offpath.serving.process.ports import resolve_ports
from offpath.serving.session import View
from tests.support.answering_server import Answers, answering_server
from tests.support.eventually import eventually
from tests.support.front import read_counts

# Of TorchServe's API, and of KServe's protocols.
PATHS = ["/predictions/m", "/v1/models/m:predict", "/v2/models/m/infer"]
# In nginx's own memory, and as a file.
BODIES = [b"s" * 55_000, b"l" * 900_000]
OWN_ID = "0b5c1d3e-0000-4000-8000-000000000000"
FRONT_KEY = "a-key-of-the-door-0123"
FRONT = DoorSettings(port=0, metrics_port=0, front_keys=(FRONT_KEY,))


class Hosts:
    """A door before two hosts and a third one that is not there."""

    def __init__(self, first: Answers, second: Answers, answer_s: int) -> None:
        (gone,) = resolve_ports("127.0.0.1", [0])
        self.both = (first, second)
        names = [host.url.removeprefix("http://") for host in self.both]
        behind = Behind(False, 32 << 20, answer_s, 50, (*names, f"127.0.0.1:{gone}"))
        self.session = SeveralHostsSession(FRONT, behind, View())
        self.session.start()

    def post(self, body: bytes = b"image", path: str = PATHS[0], **headers: str) -> httpx.Response:
        url = self.session.door.url + path
        return httpx.post(url, content=body, headers=headers, trust_env=False)

    def ping(self) -> int:
        url = f"{self.session.door.url}/ping"
        return httpx.get(url, trust_env=False).status_code

    def count(self) -> Counter[tuple[str, str]]:
        """Returns the counted answers by status and type."""
        self.session.door._counted_at = 0.0
        self.session.look_after()
        return read_counts(f"{self.session.door.metrics_url}/metrics")

    def look(self) -> None:
        """Asks the hosts often enough for a changed /ping to count; nginx follows later."""
        for _ in range(MISSES):
            self.session.look_after()

    def asked(self, posts: int) -> tuple[int, ...]:
        """Returns how many of these new requests each host got; all are answered."""
        before = [len(host.requests) for host in self.both]
        assert {self.post().status_code for _ in range(posts)} == {200}
        return tuple(len(h.requests) - n for h, n in zip(self.both, before))


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    answer_s = getattr(request, "param", 60)
    with answering_server() as first, answering_server() as second:
        hosts = Hosts(first, second, answer_s)
        try:
            yield hosts
        finally:
            hosts.session.stop()


# Each path and each status; all paths share nginx's rules.
@pytest.mark.parametrize(("path", "status"), [*zip(PATHS, (0, 502, 503)), (PATHS[0], 503)])
def test_request_that_one_host_did_not_answer_goes_to_another(
    hosts: Hosts, path: str, status: int
) -> None:
    failing, other = hosts.both
    failing.status = status
    other.headers = {"x-request-id": OWN_ID}
    answers = [hosts.post(body, path) for body in 4 * BODIES]
    assert {answer.status_code for answer in answers} == {200}
    # The record that the answer belongs to is the other host's.
    assert {answer.headers["x-request-id"] for answer in answers} == {OWN_ID}
    assert [sent for _, _, sent in other.requests] == 4 * BODIES
    assert failing.requests and {sent for _, _, sent in failing.requests} <= set(BODIES)


@pytest.mark.parametrize("hosts", [3], indirect=True, ids=["after-3-seconds"])
def test_silent_host_costs_a_request_one_time_out(hosts: Hosts) -> None:
    silent, other = hosts.both
    silent.status = -1
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(hosts.post, 2 * BODIES))
    assert {answer.status_code for answer in answers} == {200}
    assert Counter(body for _, _, body in other.requests) == Counter(2 * BODIES)
    asked = Counter(body for _, _, body in silent.requests)
    assert asked and asked <= Counter(2 * BODIES)


@pytest.mark.parametrize("path", PATHS)
def test_error_answers_of_a_host_are_not_retried(hosts: Hosts, path: str) -> None:
    statuses = [400, 415, 429, 500, 504]
    for status in statuses:
        for host in hosts.both:
            host.status = status
        assert hosts.post(path=path).status_code == status
    assert sum(len(host.requests) for host in hosts.both) == len(statuses)


def test_client_is_told_to_retry_if_no_host_answers(hosts: Hosts) -> None:
    for host in hosts.both:
        host.status = 0
    answer = hosts.post()
    assert answer.status_code == 502 and answer.json()["type"] == "BadGateway"
    assert answer.headers["Retry-After"] == "1" and answer.headers["x-request-id"]
    assert sum(len(host.requests) for host in hosts.both) <= MOST_TRIES


def test_door_counts_its_answers_by_status_and_type(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_counts, "MOST_BYTES", 100)
    for number in range(4):  # the log is replaced in between, without a loss
        assert [hosts.post().status_code for _ in range(15)] == 15 * [200]
        assert hosts.post(bytes(33 << 20)).status_code == 413
        hosts.ping()
        many = number + 1
        expected = {("200", ""): 15 * many, ("413", "PayloadTooLarge"): many}
        eventually(lambda: hosts.count() == expected)
    for host in hosts.both:
        host.status = 500
    hosts.post()
    expected = expected | {("500", ""): 1}
    eventually(lambda: hosts.count() == expected)


def test_ping_tells_whether_any_host_is_ready(hosts: Hosts) -> None:
    assert hosts.ping() == 200
    hosts.both[0].ping = 503
    hosts.look()
    eventually(lambda: hosts.asked(8) == (0, 8))
    assert hosts.ping() == 200
    hosts.both[1].ping = 503
    hosts.look()
    eventually(lambda: hosts.ping() == 503)
    live = httpx.get(f"{hosts.session.door.url}/live", trust_env=False)
    assert (live.status_code, live.json()) == (200, {"status": "Healthy"})
    hosts.both[1].ping = 200
    hosts.session.look_after()
    eventually(lambda: hosts.ping() == 200)


def test_a_model_that_is_dead_on_every_host_costs_another_model_no_request(hosts: Hosts) -> None:
    for host in hosts.both:
        host.statuses["/predictions/dead"], host.ping = 503, 503
    hosts.look()  # no host is well any more
    with ThreadPoolExecutor(4) as pool:
        paths = ["/predictions/dead", "/predictions/m"] * 100
        answers = list(pool.map(lambda path: hosts.post(path=path), paths))
    assert Counter(answer.status_code for answer in answers[1::2]) == {200: 100}
    assert {answer.status_code for answer in answers[::2]} <= {502, 503}


def test_a_host_describes_the_models(hosts: Hosts) -> None:
    paths = [
        *("/models", "/v1/models", "/v1/models/m", "/v2/models/m"),
        *("/v2/models/m/ready", "/v2/models/m/versions/1.0/ready"),
    ]
    for path in paths:
        url = f"{hosts.session.door.url}{path}"
        assert httpx.get(url, trust_env=False).content == hosts.both[0].body, path
    asked = [path for host in hosts.both for path, *_ in host.requests]
    assert sorted(asked) == sorted(paths)


def test_unwell_host_is_asked_only_if_no_other_can_be(hosts: Hosts) -> None:
    unwell, well = hosts.both
    unwell.ping = 503
    hosts.look()
    eventually(lambda: hosts.asked(8) == (0, 8))
    well.status = 0
    assert hosts.asked(4)[0] == 4


def test_a_change_that_could_not_be_written_is_made_as_soon_as_it_can(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, said = hosts.session.door, []
    monkeypatch.setattr(hosts.session._view, "show_problem", said.append)
    obstacle = door.place.run / "nginx.conf.new"  # as if the disk were full
    obstacle.mkdir()
    hosts.both[0].ping = 503
    hosts.look()
    hosts.session.look_after()
    obstacle.rmdir()
    hosts.session.look_after()
    eventually(lambda: hosts.asked(8) == (0, 8))
    assert sum("cannot be written" in text for text in said) == 1


@pytest.mark.parametrize("path", PATHS)
def test_headers_that_a_host_receives(hosts: Hosts, path: str) -> None:
    length = {"Inference-Header-Content-Length": "5"}
    sent = {"Authorization": "Bearer a", "describe": "1", "x-request-id": OWN_ID}
    hosts.post(path=path, **sent, **length)
    ((asked, headers, _),) = hosts.both[0].requests + hosts.both[1].requests
    assert asked == path and headers["inference-header-content-length"] == "5"
    # The host's own door may ask for the same tokens.
    assert headers["authorization"] == "Bearer a" and "describe" not in headers
    assert headers["x-offpath-front"] == FRONT_KEY
    # The door's own id, as nobody has allowed the client's; what follows the ~ is the attempt's.
    assert headers["x-request-id"].endswith("~") and OWN_ID not in headers["x-request-id"]


@pytest.mark.parametrize("host", ["nonsense", "a:0", "http://a:80", "a b:80", "a:80;"])
def test_upstream_must_be_host_and_port(host: str) -> None:
    with pytest.raises(ExpectedError, match="is not HOST:PORT"):
        Behind(False, 1, 1, 1, (host,))
    with pytest.raises(ExpectedError, match="name each host once"):
        Behind(False, 1, 1, 1, ("a:80", "a:80"))
