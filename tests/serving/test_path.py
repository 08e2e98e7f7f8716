"""The request path seen from outside: batches, timings and log lines."""

from __future__ import annotations

import httpx
import pytest

from offpath.serving.client import Client
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.eventually import eventually
from tests.support.front import load
from tests.support.images import jpeg
from tests.support.scrape import count_log_lines, read_metrics, wait_for_items

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
