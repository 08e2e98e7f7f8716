"""The request path seen from outside: batches, timings, warm-up, system calls."""

from __future__ import annotations

import re
import shutil

import httpx
import pytest

from offpath.serving.client import Client
from offpath.serving.torchserve.server import TorchServe
from tests.support.eventually import eventually
from tests.support.front import load
from tests.support.images import jpeg
from tests.support.scrape import count_log_lines, read_metrics, wait_for_items
from tests.support.strace import traced

pytestmark = pytest.mark.server


def send_many(server: TorchServe, model: str, requests: int, clients: int) -> None:
    """Sends at least so many requests."""
    url, body = f"{server.inference_url}/predictions/{model}", jpeg(size=(500, 333))
    with load(url, [body], clients) as seen:
        eventually(lambda: len(seen.replies) >= requests)
    assert set(seen.statuses) == {200}, seen


def test_32_clients_share_batches(either: TorchServe) -> None:
    before = read_metrics(either, "near-free")
    send_many(either, "near-free", requests=160, clients=32)
    items_before = before["offpath_items_total"][""]
    after = wait_for_items(either, "near-free", items_before + 160)
    items = after["offpath_items_total"][""] - items_before
    batches = after["offpath_batches_total"][""] - before["offpath_batches_total"][""]
    assert items >= 160  # more where batches of the warm-up were reported late
    # Without batches it is 1; how many share one depends on the machine.
    assert items / batches > 2


def test_stage_metrics_count_batches_sizes_and_errors(either: TorchServe) -> None:
    before = read_metrics(either, "near-free")
    send_many(either, "near-free", requests=40, clients=1)
    httpx.post(f"{either.inference_url}/predictions/near-free", content=b"junk " * 9)

    def is_counted() -> bool:
        now = read_metrics(either, "near-free")

        def grown(name: str, key: str = "") -> float:
            return now[name][key] - before[name][key]

        sizes, batches = "offpath_batch_size_bucket_total", "offpath_batches_total"
        stages = ("read", "decode", "transform", "inference", "postprocess")
        return (
            # More where batches of earlier tests were reported late.
            grown("offpath_items_total") >= 41
            and grown(sizes, "1") >= 41
            and now[sizes]["+Inf"] == now[batches][""]
            and grown("offpath_errors_total", "UnsupportedFormat") >= 1
            and all(grown("offpath_stage_seconds_total", one) > 0 for one in stages)
        )

    eventually(is_counted)


def test_requests_and_stages_are_counted_by_their_time(either: TorchServe) -> None:
    def read(name: str) -> list[float]:
        page = httpx.get(f"{either.metrics_url}/metrics").text
        counts = rf'^offpath_{name},le="[^"]*",.*}} (.*)$'
        return [float(count) for count in re.findall(counts, page, re.MULTILINE)]

    request = 'request_seconds_bucket_total{ModelName="near-free",status="2xx"'
    send_many(either, "near-free", requests=40, clients=4)
    stage = 'stage_seconds_bucket_total{ModelName="near-free",Stage="decode"'
    # A batch has at least one request and at most the clients'.
    eventually(lambda: max(read(request), default=0) >= 40)
    eventually(lambda: max(read(stage), default=0) >= 10)
    assert len(read(request)) <= 16 and len(read(stage)) <= 16


def test_requests_write_no_log_line(either: TorchServe) -> None:
    before = count_log_lines(either)
    send_many(either, "near-free", requests=100, clients=4)
    assert count_log_lines(either) == before


def test_a_reply_names_its_stages_and_they_add_up(either: TorchServe) -> None:
    def add_up() -> bool:
        with Client(either.inference_url, "near-free") as client:
            prediction = client.predict(jpeg())
        timing = dict(prediction.server_timing)
        total = timing.pop("total")
        assert {"read", "decode", "transform", "inference", "postprocess"} <= set(timing)
        assert prediction.request_id and sum(timing.values()) <= total * 1.01
        return total * 0.9 <= sum(timing.values())

    # On a busy machine, another process may take the core between two stages.
    eventually(add_up)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_under_strace_200_requests_open_connect_and_start_nothing(either: TorchServe) -> None:
    send_many(either, "near-free", requests=64, clients=8)
    with traced(either.worker_pids()) as calls:
        send_many(either, "near-free", requests=200, clients=8)
    assert calls == []
