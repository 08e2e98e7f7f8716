"""The request path seen from outside: batches, timings, log lines and bad bodies."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from offpath.serving.client import Client
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.serving.scrape import count_log_lines, read_metrics, wait_for_items
from tests.support.eventually import eventually
from tests.support.front import load
from tests.support.images import jpeg, rejected

pytestmark = pytest.mark.server


def send_many(server: TorchServe, model: str, requests: int, clients: int) -> None:
    """Sends at least so many requests."""
    url, body = f"{server.inference_url}/predictions/{model}", jpeg(size=(500, 333))
    with load(url, [body], clients) as seen:
        eventually(lambda: len(seen.replies) >= requests)
    assert set(seen.statuses) == {200}, seen


def test_32_clients_share_batches_and_write_no_log_line(either: TorchServe) -> None:
    before, lines = read_metrics(either, "near-free"), count_log_lines(either)
    send_many(either, "near-free", requests=160, clients=32)
    items_before = before["offpath_items_total"][""]
    after = wait_for_items(either, "near-free", items_before + 160)
    items = after["offpath_items_total"][""] - items_before
    batches = after["offpath_batches_total"][""] - before["offpath_batches_total"][""]
    assert items >= 160  # more where batches of the warm-up were reported late
    # Without batches it is 1; how many share one depends on the machine.
    assert items / batches > 2
    assert count_log_lines(either) == lines


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


@guarantee("A bad item or a time-out in a batch")
@guarantee("Bytes that cause a 5xx or end a worker")
def test_bad_and_random_bodies_fail_alone_and_end_no_worker(either: TorchServe) -> None:
    workers, good, generator = either.worker_pids(), jpeg(size=(500, 333)), random.Random(0)
    bodies = 5 * [body for body, *_ in rejected().values() if len(body) < 1_000_000]
    magics = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF", b"BM"]
    magics += [b"II*\x00", b"\x93NUMPY\x01\x00", b"{", b'"']
    for _ in range(1000):
        random_bytes = generator.randbytes(generator.randint(1, 2000))
        bodies.append(generator.choice(magics) + random_bytes)
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
    with (
        httpx.Client(base_url=either.inference_url, timeout=60, limits=limits) as client,
        ThreadPoolExecutor(32) as pool,
    ):

        def send(number: int) -> int:
            body = good if number % 8 == 0 else bodies[number]
            return client.post("/predictions/near-free", content=body).status_code

        statuses = list(pool.map(send, range(len(bodies))))
    assert set(statuses[::8]) == {200}
    assert all(status == 200 or 400 <= status < 500 for status in statuses)
    assert either.worker_pids() == workers
