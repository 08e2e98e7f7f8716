"""The door's counts, also where nginx and the door cannot write to a full disk."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from offpath.errors import ExpectedError
from offpath.handler.wire_names import FULL_HEADER
from offpath.serving.front import reply_counts
from offpath.serving.front.nginx_config import DOOR_METRICS, REPLIES
from offpath.serving.front.reply_counts import FAILING_S, FAILURES, ReplyCounts
from offpath.serving.front.splits import Split
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers
from tests.serving.scrape import read_counts
from tests.support.eventually import eventually


def read_count(run: Path, status: str) -> float:
    page = (run / DOOR_METRICS).read_text()
    counts = rf'^offpath_door_responses_total{{status="{status}",.*}} (\S+)$'
    return sum(map(float, re.findall(counts, page, re.MULTILINE)))


@guarantee(
    "The disk of the logs or `/tmp` is full",
    "serving/front/reply_counts.py",
    ("the next count tries again.\n" "        with contextlib.suppress(OSError):"),
    ("the next count tries again.\n" "        with contextlib.suppress(KeyError):"),
)
def test_half_lines_are_left_out_and_a_page_that_cannot_be_written_stays(tmp_path: Path) -> None:
    replies = ReplyCounts(tmp_path)
    log, obstacle = tmp_path / REPLIES, (tmp_path / DOOR_METRICS).with_suffix(".new")
    log.write_text(
        "0.010 200 - \n0.010 2000.010 200 - \n.5\n\n0.010.005 200 - \n0.020 404 NotFound \n"
    )
    replies.count(is_ready=True)
    assert (read_count(tmp_path, "200"), read_count(tmp_path, "404")) == (1, 1)
    obstacle.mkdir()
    with open(log, "a") as file:
        file.write("0.010 200 - \n")
    replies.count(is_ready=True)
    assert read_count(tmp_path, "200") == 1
    obstacle.rmdir()
    replies.count(is_ready=True)
    assert read_count(tmp_path, "200") == 2
    replies.close()


def test_copies_to_a_shadow_are_no_replies(tmp_path: Path) -> None:
    replies = ReplyCounts(tmp_path)
    (tmp_path / REPLIES).write_text("copy 502 -\ncopy 200 -\ncopy 502 -\n0.010 200 - \n")
    replies.count(is_ready=True)
    replies.close()
    page = (tmp_path / DOOR_METRICS).read_text()
    for status, number in (("200", 1), ("502", 2), ("504", 0)):
        assert f'offpath_door_copies_total{{status="{status}"}} {number}\n' in page
    assert (read_count(tmp_path, "200"), read_count(tmp_path, "502")) == (1, 0)


@guarantee(
    "More requests than the queue holds",
    "serving/conf/nginx.conf",
    "        {{ kind.status }} {{ retry_after_s }};",
    "",
)
@guarantee(
    "A canary that only fails",
    "serving/conf/nginx.conf",
    "{{ busy.status }}1 {{ busy.type }};",
    "",
)
def test_the_door_counts_every_reply_although_the_log_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_counts, "MAX_BYTES", 100)
    with door_before_answers(tmp_path) as (door, server), httpx.Client(trust_env=False) as client:

        def post(body: bytes = b"image") -> int:
            return client.post(f"{door.url}/predictions/m", content=body).status_code

        def count() -> Counter[tuple[str, str]]:
            door._counted_at = 0.0
            door.look_after()
            return read_counts(door.urls["metrics"])

        for many in (1, 2, 3):
            assert [post() for _ in range(15)] == 15 * [200]
            assert post(bytes(33 << 20)) == 413
            client.get(f"{door.url}/ping")
            expected = {("200", ""): 15 * many, ("413", "PayloadTooLarge"): many}
            eventually(lambda: count() == expected)
        server.status = 500
        post()
        server.status = 503  # of the version, then of a worker whose queue is full
        post()
        server.headers[FULL_HEADER] = "1"
        full = client.post(f"{door.url}/predictions/m", content=b"x").headers
        assert FULL_HEADER not in full and full["Retry-After"] == "1"
        kinds = ("500", ""), ("503", ""), ("503", "ServiceUnavailable")
        eventually(lambda: count() == expected | dict.fromkeys(kinds, 1))


@guarantee("The disk of the logs or `/tmp` is full")
def test_a_change_that_could_not_be_written_is_made_as_soon_as_it_can(tmp_path: Path) -> None:
    with door_before_answers(tmp_path) as (door, _):
        changed = replace(door.settings, explanations=True)
        obstacle = door.place.run / "nginx.conf.new"  # as if the disk were full
        obstacle.mkdir()
        with pytest.raises(ExpectedError, match="cannot be written"):
            door.change(changed)
        obstacle.rmdir()
        door.change(changed)

        def explain() -> int:
            url = f"{door.url}/explanations/m"
            return httpx.post(url, content=b"image", trust_env=False).status_code

        eventually(lambda: explain() == 200)


LONG_S = 1.01 * FAILING_S


@guarantee(
    "Paths and deadlines that fool the door",
    "serving/front/reply_counts.py",
    'count * (status >= "500" and (status, kind) != ("504", ""))',
    'count * (status >= "500")',
)
@guarantee(
    "A canary that only fails",
    "serving/front/reply_counts.py",
    "return count >= FAILURES and last - first >= FAILING_S",
    "return False",
)
@pytest.mark.parametrize(
    "lines, took_s, only_fails",
    [
        pytest.param(["500 x d/2.0"] * FAILURES, LONG_S, True, id="all"),
        pytest.param(["500 x d/2.0"] * FAILURES, FAILING_S / 2, False, id="too-soon"),
        pytest.param(["500 x d/2.0"] * (FAILURES - 1), LONG_S, False, id="too-few"),
        pytest.param(["503 x d/2.0"] * FAILURES + ["200  d/2.0"], LONG_S, False, id="one-answer"),
        pytest.param(
            ["500 x d/2.0"] * FAILURES + ["200  d/3.0", "200  "], LONG_S, True, id="others"
        ),
        pytest.param(["415 x d/2.0"] * FAILURES, LONG_S, False, id="clients-fault"),
        pytest.param(["503 ServiceUnavailable d/2.0"] * FAILURES, LONG_S, False, id="full-queue"),
        pytest.param(["504  d/2.0"] * FAILURES, LONG_S, False, id="clients-deadline"),
        pytest.param(["504 GatewayTimeout d/2.0"] * FAILURES, LONG_S, True, id="hangs"),
    ],
)
def test_a_canary_only_fails_if_none_of_many_requests_over_some_time_had_an_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    took_s: float,
    only_fails: bool,
) -> None:
    replies, canary = ReplyCounts(tmp_path), Split("d", "2.0", "5")
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    for line in lines:
        with open(tmp_path / REPLIES, "a") as log:
            log.write(f"0.010 {line}\n")
        replies.count(is_ready=True, canaries=[canary])
        now += took_s / (FAILURES - 1)
    assert replies.only_fails(canary) is only_fails
    replies.forgive()
    assert not replies.only_fails(canary)
    replies.close()
    page = (tmp_path / DOOR_METRICS).read_text()
    assert 'canary_suspended{model="d",version="2.0"} 0' in page
