from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from offpath.profiling.experiments.soak import (
    MemorySample,
    SoakChoices,
    SoakResult,
    find_problems,
    memory_slope_bytes_per_min,
)
from offpath.profiling.load.bad_items import make_bad_items


def make_soak(statuses: dict[str, int], pids: list[tuple[int, ...]]) -> SoakResult:
    memory = [
        MemorySample(10.0 * index, {pid: 1000 for pid in team})
        for index, team in enumerate(pids)
    ]
    choices = SoakChoices(1, "photos", "near-free", 4, 0, "offpath bench soak")
    return SoakResult(choices, "now", {}, ["empty"], 3, statuses, 60.0, memory)


def test_client_errors_are_no_problem():
    assert (
        find_problems(make_soak({"200": 10, "400": 3, "422": 4}, [(1, 2), (1, 2)]))
        == []
    )


@pytest.mark.parametrize(
    ("statuses", "pids", "named"),
    [
        pytest.param(
            {"200": 9, "503": 1}, [(1, 2)], "1 replies with status 503", id="5xx"
        ),
        pytest.param({"200": 9, "none": 2}, [(1, 2)], "status none", id="no-reply"),
        pytest.param({"200": 9}, [(1, 2), (1, 3)], "restarted", id="restart"),
    ],
)
def test_what_must_not_be_is_named(statuses, pids, named):
    (problem,) = find_problems(make_soak(statuses, pids))
    assert named in problem


def test_slope_counts_from_the_first_minute_on():
    early = [MemorySample(t, {1: 10**9}) for t in (0.0, 30.0)]
    later = [MemorySample(60.0 * m, {1: 5000 + 100 * m, 2: 0}) for m in (1, 2, 3, 4)]
    assert memory_slope_bytes_per_min(early + later) == pytest.approx(100)
    assert math.isnan(memory_slope_bytes_per_min(early))


def test_bad_items_are_as_bad_as_their_names():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG")
    items = make_bad_items(buffer.getvalue(), seed=0)
    assert items["empty"] == b""
    assert items == make_bad_items(buffer.getvalue(), seed=0)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(io.BytesIO(items["pickled-npy"]), allow_pickle=False)
    assert len(items["bomb"]) < 100
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(items["bomb"]))
