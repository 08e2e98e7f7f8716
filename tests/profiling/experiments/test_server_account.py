"""The account of a client's latency: what each clock says, and that the lines add up."""

from __future__ import annotations

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.server_account import (
    CLIENT,
    HANDLER,
    HANDLER_OTHER,
    LEFT,
    PROTOCOL,
    QUEUE,
    WORKER,
    Counters,
    find_doubts,
    make_account,
    read_counters,
)
from offpath.profiling.load.prometheus import Series, Snapshot

# 800 requests in 100 batches of 8; per request: 40 ms by Java, 10 of them in the queue;
# per batch: 26 ms around `handle`, of which the stages know 24 and `other` 1.
OURS = {
    ("ts_inference_requests_total", "model_name=m"): 800,
    ("ts_inference_latency_microseconds_total", "model_name=m"): 800 * 40e3,
    ("ts_queue_latency_microseconds_total", "model_name=m"): 800 * 10e3,
    ("PredictionTime_sum", "ModelName=m"): 100 * 26.0,
    ("PredictionTime_count", "ModelName=m"): 100,
    ("offpath_batches_total", "ModelName=m"): 100,
    ("offpath_items_total", "ModelName=m"): 800,
    ("offpath_stage_seconds_total", "ModelName=m,Stage=inference"): 0.4,
    ("offpath_stage_seconds_total", "ModelName=m,Stage=decode"): 2.0,
    ("offpath_stage_seconds_total", "ModelName=m,Stage=other"): 0.1,
}
BATCH_METRICS = ("PredictionTime", "offpath_")


def snapshot(counters: dict, at_s: float = 0.0, scale: float = 1.0) -> Snapshot:
    rows = []
    for (name, labels), value in counters.items():
        pairs = dict(pair.split("=") for pair in labels.split(","))
        rows.append(Series(name, pairs, value * scale))
    return Snapshot(at_s, tuple(rows))


def count(counters: dict) -> Counters:
    # The counters were not at zero when the window began.
    return read_counters(
        snapshot(counters, scale=0.5), snapshot(counters, scale=1.5), "m"
    )


def account(counters: dict, mean_ms: float = 50.0) -> dict[str, float]:
    return make_account(mean_ms, count(counters))


def doubts(counters: dict, mean_ms: float = 50.0, clients: int = 4) -> list[str]:
    counted = count(counters)
    return find_doubts(counted, make_account(mean_ms, counted), mean_ms, clients)


def without(counters: dict, *prefixes: str) -> dict:
    return {key: n for key, n in counters.items() if not key[0].startswith(prefixes)}


def test_each_part_is_a_stage_or_the_difference_of_two_clocks():
    assert account(OURS) == pytest.approx(
        {
            CLIENT: 50 - 40,
            QUEUE: 10,
            PROTOCOL: 40 - 10 - 26,
            "decode": 20,
            "inference": 4,
            HANDLER_OTHER: 1,
            LEFT: 26 - 25,
        }
    )
    assert count(OURS).mean_batch_size == 8
    assert doubts(OURS) == []


def test_parts_come_in_the_order_of_the_path():
    later = {("offpath_stage_seconds_total", "ModelName=m,Stage=a-later-one"): 0.1}
    assert list(account({**later, **OURS})) == [
        *(CLIENT, QUEUE, PROTOCOL),
        *("decode", "inference", "a-later-one", HANDLER_OTHER, LEFT),
    ]


@pytest.mark.parametrize(
    "counters",
    [
        pytest.param(OURS, id="all-clocks"),
        pytest.param(without(OURS, "PredictionTime"), id="only-our-counters"),
        pytest.param(without(OURS, "offpath_"), id="only-torchserves"),
        pytest.param(without(OURS, *BATCH_METRICS), id="nothing-per-batch"),
        pytest.param(
            {**OURS, ("PredictionTime_sum", "ModelName=m"): 100 * 90.0},
            id="clocks-that-contradict",
        ),
    ],
)
@pytest.mark.parametrize("mean_ms", [50.0, 33.3, 0.7])
def test_the_lines_add_up_to_the_clients_mean(counters, mean_ms):
    parts = account(counters, mean_ms)
    assert sum(parts.values()) == pytest.approx(mean_ms, rel=1e-12)
    assert list(parts)[-1] == LEFT
    # Only the last line may be below zero.
    assert all(ms >= 0 for name, ms in parts.items() if name != LEFT)


def test_a_handler_without_stages_is_one_part_and_what_is_around_it_is_not_accounted_for():
    counters = {
        **without(OURS, "offpath_"),
        ("HandlerTime_sum", "ModelName=m"): 100 * 25.5,
        ("HandlerTime_count", "ModelName=m"): 100,
    }
    parts = account(counters)
    assert parts[HANDLER] == pytest.approx(25.5)
    assert parts[LEFT] == pytest.approx(0.5)
    assert count(counters).mean_batch_size == 8


def test_a_server_that_counts_no_batches_says_so():
    counters = without(OURS, *BATCH_METRICS)
    assert list(account(counters)) == [CLIENT, QUEUE, WORKER, LEFT]
    assert account(counters)[WORKER] == pytest.approx(30)
    assert "cannot be told apart" in doubts(counters)[0]
    assert count(counters).mean_batch_size is None


def test_javas_replies_are_counted_by_queue_time_where_it_is_a_histogram():
    # 16 more had arrived than were answered.
    counters = {
        **OURS,
        ("ts_inference_requests_total", "model_name=m"): 816,
        ("QueueTime_count", "Level=Host"): 800,
    }
    assert account(counters)[QUEUE] == pytest.approx(10)


def test_queue_time_of_several_models_is_not_taken_for_one():
    counters = {
        **OURS,
        ("ts_inference_requests_total", "model_name=other"): 5000,
        ("QueueTime_count", "Level=Host"): 5800,
    }
    assert account(counters)[QUEUE] == pytest.approx(10)


def test_other_models_are_left_out():
    others = {
        (name, labels.replace("=m", "=other")): 3 * n
        for (name, labels), n in OURS.items()
    }
    assert account({**OURS, **others}) == account(OURS)


def test_few_batches_are_a_doubt():
    few = {
        key: n / 10 if key[0].startswith(("offpath_batches", "PredictionTime_c")) else n
        for key, n in OURS.items()
    }
    assert "only 10 batches" in doubts(few)[0]


def test_requests_at_the_windows_ends_are_a_doubt_where_there_are_many():
    assert "up to 64 requests in flight" in doubts(OURS, clients=64)[0]


def test_parts_above_the_clients_mean_are_a_doubt():
    assert "9.0 ms more than the client waited" in doubts(OURS, 30.0)[0]


def test_a_restarted_server_is_an_error():
    with pytest.raises(ExpectedError, match="fell by .* restarted"):
        read_counters(snapshot(OURS), snapshot(OURS, scale=0.5), "m")


@pytest.mark.parametrize(
    ("counters", "model", "said"),
    [
        pytest.param({}, "m", "no ts_inference_requests_total", id="no-torchserve"),
        pytest.param(OURS, "cats", "no request of the model 'cats'", id="other-model"),
    ],
)
def test_counters_that_do_not_serve_are_said(counters, model, said):
    with pytest.raises(ExpectedError, match=said):
        read_counters(snapshot(counters, scale=0.5), snapshot(counters), model)
