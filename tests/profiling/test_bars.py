from __future__ import annotations

import pytest

from offpath.profiling.in_process.buckets import BUCKETS
from offpath.profiling.report.bars import (
    COLOUR_OF,
    StackedBar,
    assign_colours,
    list_segments,
)


def test_the_same_work_has_the_same_colour_in_every_chart():
    assert assign_colours(["decode", "other"]) == {"decode": "s4", "other": "grey"}
    assert assign_colours(["inference"]) == {
        "inference": assign_colours(["forward"])["forward"]
    }


def test_each_bucket_has_a_colour_of_its_own():
    assert len({COLOUR_OF[bucket] for bucket in BUCKETS}) == len(BUCKETS)


def test_no_two_parts_of_a_page_look_alike():
    names = ["read", "decode", "config", "mine", "yours", "other", "handler, other"]
    colours = assign_colours(names)
    assert list(colours) == names
    assert len(set(colours.values())) == len(names)


def test_more_parts_than_colours_are_still_drawn():
    colours = assign_colours(f"stage {n}" for n in range(20))
    assert len(colours) == 20 and all(colours.values())


def test_bars_have_one_scale_or_fill_the_width():
    bars = [
        StackedBar("a", [("x", 1.0), ("y", 3.0)], ""),
        StackedBar("b", [("x", 8.0)], ""),
    ]
    assert [s.width for s in list_segments(bars, shares=False)[0]] == [0.125, 0.375]
    assert [s.width for s in list_segments(bars, shares=True)[0]] == [0.25, 0.75]


def test_a_part_below_nothing_has_no_width():
    (segments,) = list_segments(
        [StackedBar("a", [("x", 2.0), ("other", -0.5)], "")], True
    )
    assert [segment.width for segment in segments] == [1.0, 0.0]


def test_an_empty_bar_is_no_error():
    assert list_segments([StackedBar("a", [("x", 0.0)], "")], False)[0][0].width == 0
    assert list_segments([], True) == []


@pytest.mark.parametrize("name", ["handler, other", "not accounted for"])
def test_what_is_left_over_is_grey(name):
    assert assign_colours(["other", name])[name].startswith("grey")
