"""The account of a client's latency: what each clock says, and that the lines add up."""

from __future__ import annotations

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.server_profile import (
    account_ms,
    batch_weight,
    bucket_shares,
    make_account,
    make_server_profile,
    read_counters,
)
from offpath.profiling.load.plan import LoadSample
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
    ("offpath_batch_size_bucket_total", "ModelName=m,Le=4"): 0,
    ("offpath_batch_size_bucket_total", "ModelName=m,Le=8"): 100,
    ("offpath_batch_size_bucket_total", "ModelName=m,Le=+Inf"): 100,
}
BATCH_METRICS = ("PredictionTime", "offpath_")


def snapshot(counters: dict, at_s: float = 0.0, scale: float = 1.0) -> Snapshot:
    rows = []
    for (name, labels), value in counters.items():
        pairs = dict(pair.split("=") for pair in labels.split(","))
        rows.append(Series(name, pairs, value * scale))
    return Snapshot(at_s, tuple(rows))


def load(mean_ms: float = 50.0, replies: int = 800, **statuses: int) -> LoadSample:
    latencies = [mean_ms - 5, mean_ms + 5] * (replies // 2)
    counts = {"200": replies, **{key.strip("_"): n for key, n in statuses.items()}}
    return LoadSample(10.0, {k: n for k, n in counts.items() if n}, latencies, 1.0)


def profile(counters: dict, sample: LoadSample | None = None) -> dict:
    # The counters were not at zero when the window began.
    before = snapshot(counters, at_s=1.0, scale=0.5)
    after = snapshot(counters, at_s=11.0, scale=1.5)
    return make_server_profile(before, after, "m", 4, sample or load())


def parts(server: dict) -> dict[str, float]:
    return {row["part"]: pytest.approx(row["ms"]) for row in server["account"]}


def without(counters: dict, *prefixes: str) -> dict:
    return {key: n for key, n in counters.items() if not key[0].startswith(prefixes)}


def test_each_part_is_a_stage_or_the_difference_of_two_clocks():
    server = profile(OURS)
    assert parts(server) == {
        "client, socket and front end": 50 - 40,
        "queue": 10,
        "worker protocol": 40 - 10 - 26,
        "decode": 20,
        "inference": 4,
        "handler, other": 1,
        "not accounted for": 26 - 25,
    }
    assert server["window_s"] == 10
    assert server["mean_batch_size"] == 8
    assert server["doubts"] == []


def test_stages_come_in_the_order_of_the_path():
    names = [
        row["part"] for row in profile(OURS)["account"] if row["where"] == "handler"
    ]
    assert names == ["decode", "inference", "handler, other"]


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
    server = profile(counters, load(mean_ms))
    total = sum(row["ms"] for row in server["account"])
    assert total == pytest.approx(mean_ms, rel=1e-12)
    assert server["mean_ms"] == pytest.approx(mean_ms, rel=1e-12)
    assert [row["where"] for row in server["account"]][-1] == "unaccounted"
    # Only the last line may be below zero.
    assert all(row["ms"] >= 0 for row in server["account"][:-1])


def test_a_handler_without_stages_is_one_part_and_what_is_around_it_is_not_accounted_for():
    counters = {
        **without(OURS, "offpath_"),
        ("HandlerTime_sum", "ModelName=m"): 100 * 25.5,
        ("HandlerTime_count", "ModelName=m"): 100,
    }
    server = profile(counters)
    assert parts(server)["handler"] == 25.5
    assert account_ms(server["account"], "unaccounted") == pytest.approx(0.5)
    assert server["mean_batch_size"] == 8
    assert server["batch_weight"] is None


def test_a_server_that_counts_no_batches_says_so():
    server = profile(without(OURS, *BATCH_METRICS))
    assert parts(server)["worker and handler"] == 30
    assert account_ms(server["account"], "handler") == 0
    assert "cannot be told apart" in server["doubts"][0]


def test_javas_replies_are_counted_by_queue_time_where_it_is_a_histogram():
    # 16 more had arrived than were answered.
    counters = {
        **OURS,
        ("ts_inference_requests_total", "model_name=m"): 816,
        ("QueueTime_count", "Level=Host"): 800,
    }
    assert parts(profile(counters))["queue"] == 10


def test_queue_time_of_several_models_is_not_taken_for_one():
    counters = {
        **OURS,
        ("ts_inference_requests_total", "model_name=other"): 5000,
        ("QueueTime_count", "Level=Host"): 5800,
    }
    assert parts(profile(counters))["queue"] == 10


def test_other_models_are_left_out():
    others = {
        (name, labels.replace("=m", "=other")): 3 * n
        for (name, labels), n in OURS.items()
    }
    assert parts(profile({**OURS, **others})) == parts(profile(OURS))


@pytest.mark.parametrize(
    ("sizes", "mean", "expected"),
    [
        pytest.param({"4": 0, "8": 100, "+Inf": 100}, 8, 1.0, id="all-full"),
        pytest.param({"1": 100, "+Inf": 100}, 1, 1.0, id="all-single"),
        # Half 1, half 8: E[n^2] = 32.5, E[n]^2 = 20.25.
        pytest.param(
            {"1": 50, "2": 50, "4": 50, "8": 100, "+Inf": 100},
            4.5,
            32.5 / 20.25,
            id="ones-and-eights",
        ),
        # Sizes from 5 to 8 with a mean of 6.5 are at the most half 5 and half 8.
        pytest.param(
            {"4": 0, "8": 100, "+Inf": 100}, 6.5, 44.5 / 42.25, id="one-bucket"
        ),
    ],
)
def test_the_weight_of_unequal_batches_is_bounded(sizes, mean, expected):
    counters = {"batches": 100, "items": 100 * mean, "batch_sizes_le": sizes}
    assert batch_weight(counters) == pytest.approx(expected)


def test_batches_above_the_last_bucket_have_a_bucket():
    assert bucket_shares({"32": 1, "64": 1, "+Inf": 4}) == [
        (1, 32, 0.25),
        (65, 128, 0.75),
    ]


def test_doubts_are_said():
    few = {
        key: n / 10 if key[0].startswith(("offpath_batches", "PredictionTime_c")) else n
        for key, n in OURS.items()
    }
    doubts = profile(few, load(replies=780, _503=20))["doubts"]
    assert "only 10 batches" in doubts[0]
    assert "20 replies were not 200" in doubts[1]


def test_parts_above_the_clients_mean_are_a_doubt():
    assert (
        "9.0 ms more than the client waited" in profile(OURS, load(30.0))["doubts"][0]
    )


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
        make_server_profile(
            snapshot(counters, scale=0.5), snapshot(counters), model, 4, load()
        )


def test_no_good_reply_is_an_error():
    sample = LoadSample(10.0, {"503": 70}, [], 1.0)
    with pytest.raises(ExpectedError, match="503.*70"):
        make_server_profile(snapshot(OURS), snapshot(OURS), "m", 4, sample)


def test_the_account_needs_no_weights():
    counters = read_counters(snapshot(OURS, scale=0.0), snapshot(OURS), "m")
    assert sum(row["ms"] for row in make_account(50.0, counters)) == pytest.approx(50)
