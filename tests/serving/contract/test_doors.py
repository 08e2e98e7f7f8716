"""Requests through the front door before each server, as a client sees them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from offpath.commands.url_option import find_door
from tests.guarantees import guarantee
from tests.serving.scrape import read_counts
from tests.support.eventually import eventually
from tests.support.front import FrontProcess, check_addresses
from tests.support.images import jpeg

pytestmark = pytest.mark.server

SMALL = jpeg(size=(500, 333))
LARGE = jpeg(size=(2048, 1365))
PATH = "/predictions/near-free"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module", params=["torchserve_door", "granian_door"])
def door(request: pytest.FixtureRequest) -> FrontProcess:
    running: FrontProcess = request.getfixturevalue(request.param)
    return running


@pytest.fixture(scope="module")
def http(door: FrontProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door.url, timeout=60, trust_env=False) as client:
        yield client


@guarantee(
    "Paths and deadlines that fool the door",
    "serving/conf/nginx.conf",
    '(infer{{ explain }}){% endif %})\\z" {',
    '(infer{{ explain }}){% endif %})$" {',
)
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("GET", PATH, b"", 405, id="method"),
        pytest.param("GET", "/models/near-free", b"", 404, id="management"),
        pytest.param("GET", "/metrics", b"", 404, id="metrics"),
        pytest.param("GET", "/", b"", 404, id="root"),
        pytest.param("GET", "/demo/index.html", b"", 404, id="demo"),
        pytest.param("POST", "/ping", b"", 405, id="ping-method"),
        pytest.param("POST", "/live", b"", 405, id="live-method"),
        pytest.param("POST", f"{PATH}/../../metrics", b"", 404, id="parent"),
        pytest.param("POST", "/named/predictions/near-free", b"", 404, id="internal"),
        pytest.param("POST", "/_offpath/503", b"", 404, id="error-page"),
        pytest.param("POST", "/_offpath/shadow", b"", 404, id="shadow"),
        pytest.param("POST", f"{PATH}%0A", b"x", 404, id="line-break"),
        pytest.param("POST", f"{PATH}?x=%zz", b"x", 400, id="escape"),
        pytest.param("POST", PATH, bytes(33 << 20), 413, id="too-large"),
    ],
)
def test_the_doors_own_errors_look_like_the_handlers(
    http: httpx.Client, method: str, path: str, body: bytes, status: int
) -> None:
    response = http.request(method, path, content=body)
    assert response.status_code == status, response.text
    answer = response.json()
    assert set(answer) == {"code", "type", "message"}
    assert status != 404 or answer["message"].startswith("not found; the paths are")
    assert answer["code"] == status
    allowed = {PATH: "POST, PUT", "/ping": "GET, HEAD", "/live": "GET, HEAD"}
    expected = allowed[path] if status == 405 else None
    assert response.headers.get("allow") == expected
    assert UUID.fullmatch(response.headers["x-request-id"])


def test_metrics_are_served_at_their_address(door: FrontProcess, http: httpx.Client) -> None:
    assert http.post(PATH, content=bytes(33 << 20)).status_code == 413
    # Prometheus asks for these, and would get TorchServe's end mark in the middle.
    headers = {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}

    def read() -> str:
        return httpx.get(door.metrics_url, headers=headers, trust_env=False).text

    count = 'offpath_door_responses_total{status="413",type="PayloadTooLarge"}'
    eventually(lambda: count in read())
    eventually(lambda: "\noffpath_items_total" in read() and "offpath_door_ready 1\n" in read())
    assert "# EOF" not in read()


def test_a_late_request_gets_504_and_the_door_says_when_it_came(
    door: FrontProcess, http: httpx.Client
) -> None:
    before = read_counts(door.metrics_url)["504", ""]
    late = http.post(PATH, content=SMALL, headers={"x-request-timeout-ms": "0"})
    assert (late.status_code, late.json()["type"]) == (504, "DeadlineExceeded")
    # A client's word about the door's own header does not count; a proxy's header does.
    headers = {"x-request-timeout-ms": "60000", "X-Offpath-Arrived": "1000000000.0"}
    assert http.post(PATH, content=SMALL, headers=headers).status_code == 200
    headers["X-Request-Start"] = "t=1000000000.0"
    assert http.post(PATH, content=LARGE, headers=headers).status_code == 504
    eventually(lambda: read_counts(door.metrics_url)["504", ""] == before + 2)


def test_the_time_of_every_answer_is_counted(door: FrontProcess, http: httpx.Client) -> None:
    http.post(PATH, content=SMALL)
    name = "_request_seconds_bucket_total"

    def count_all() -> bool:
        page = httpx.get(door.metrics_url, trust_env=False).text
        times = re.findall(rf'{name}\{{status="(...)",le="\+Inf"\}} (.*)', page)
        counts = Counter()
        for (status, _), count in read_counts(page=page).items():
            counts["499" if status == "499" else f"{status[0]}xx"] += count
        assert {key: int(count) for key, count in times if count != "0"} == counts
        ok = re.findall(rf'{name}\{{status="2xx",le=".*"\}} (.*)', page)
        assert len(ok) == 16 and ok == sorted(ok, key=int)
        # The door's own answers take less than a millisecond, predictions more.
        return int(ok[0]) < int(ok[-1])

    eventually(count_all)


def test_every_printed_address_leads_to_the_door(door: FrontProcess) -> None:
    addresses = door.addresses.values()
    check_addresses(addresses)
    assert {find_door(url) for url in addresses} == {door.run}


def test_clients_uuid_starts_the_requests_id(torchserve_door: FrontProcess) -> None:
    def ask(sent: str) -> str:
        headers = {"x-request-id": sent}
        reply = httpx.post(torchserve_door.url + PATH, content=SMALL, headers=headers)
        return reply.headers["x-request-id"]

    sent = "11111111-2222-3333-4444-555555555555"
    ids = [ask(sent), ask(sent)]
    assert all(re.fullmatch(sent + r"\.[0-9a-f]{12}", one) for one in ids)
    assert ids[0] != ids[1]
    for other in ("1; rm", f"{sent}~", f"x {sent}"):
        assert UUID.fullmatch(ask(other)) and ask(other) != sent


@guarantee("Logs that fill the disk or forge lines")
@pytest.mark.parametrize("name", ["front.log", "front-access.log"])
def test_the_doors_log_is_rotated(door: FrontProcess, name: str) -> None:
    log = door.log_dir / name
    with open(log, "ab") as file:
        file.truncate(21 << 20)
    eventually(log.with_name(f"{name}.1").exists)
    eventually(lambda: log.exists() and log.stat().st_size < 1 << 20)
    assert log.with_name(f"{name}.1").stat().st_size >= 21 << 20
