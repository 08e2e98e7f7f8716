from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.report.charts import (
    PALETTE,
    WIDTH_IN,
    Bar,
    BarChart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
    assign_colours,
)
from offpath.profiling.report.drawings import (
    add_legend,
    count_legend_columns,
    draw_charts,
    inline_svg,
    plotting,
)
from tests.support.documents import make_charts

NAIVE = ["preprocess", "config", "s3"]
SERVER = ["client, socket and front end", "queue", "worker protocol"]


def texts_of(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()).strip() for e in root.iter() if e.tag.endswith("text")]


def test_a_picture_for_a_readme_brings_its_palette_and_its_dark_mode(
    tmp_path: Path,
) -> None:
    draw_charts(make_charts(), tmp_path / "new" / "a.svg")
    svg = (tmp_path / "new" / "a.svg").read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in svg and "var(--s0)" in svg


def test_the_same_charts_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        draw_charts(make_charts(), path)
    assert first.read_bytes() == second.read_bytes()


def test_bars_say_their_figures_and_the_limits_name() -> None:
    bars = [Bar("offpath", 76, "76 (2.8 x)", True, 64, 80), Bar("stock", 26, "26")]
    said = texts_of(inline_svg(BarChart("speed", "req/s", bars, (101, "decode"))))
    assert {"offpath", "stock", "76 (2.8 x)", "26", "req/s", "decode"} <= set(said)


def test_points_that_have_no_place_on_an_axis_are_left_out() -> None:
    odd = [(0.0, 1.0), (1.0, float("nan")), (2.0, 5.0), (4.0, 6.0)]
    chart = LineChart("t", "x", "y", [Series("a", odd)], log_x=True, log_y=True)
    assert "nan" not in inline_svg(chart)


def test_known_work_keeps_its_colour_and_others_take_what_is_left() -> None:
    colours = assign_colours(["decode", "mine", "other", "yours"])
    assert colours["decode"] == PALETTE["s4"] and colours["other"] == PALETTE["grey"]
    assert len(set(colours.values())) == 4


def test_parts_of_one_colour_are_told_apart_as_long_as_there_are_free_ones() -> None:
    names = ["queue", "s3", "preprocess", "worker protocol", "other", "load"]
    colours = assign_colours(names)
    assert colours["queue"] == PALETTE["s3"]
    assert colours["other"] == colours["load"] == PALETTE["grey"]
    assert len(set(colours.values())) == len(names) - 1


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([stage.value for stage in Stage] + NAIVE, id="stages-of-three-handlers"),
        pytest.param([*SERVER, *(stage.value for stage in Stage)], id="server"),
    ],
)
def test_a_stage_has_its_own_colour_beside_any_others(names: list[str]) -> None:
    colours = assign_colours(names)
    assert colours == {name: assign_colours([name])[name] for name in names}
    assert len(set(colours.values())) == len(names)


def test_one_long_name_does_not_make_a_legend_of_one_column() -> None:
    names = [*SERVER, *(stage.value for stage in Stage)]
    assert count_legend_columns(names) == 3


@pytest.mark.parametrize(
    ("name", "charts", "message"),
    [
        pytest.param("a.gif", make_charts(), "ending in .svg", id="suffix"),
        pytest.param("a.svg", [], "no figures yet", id="nothing-to-draw"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    tmp_path: Path, name: str, charts: list[BarChart], message: str
) -> None:
    with pytest.raises(ExpectedError, match=message):
        draw_charts(charts, tmp_path / name)


@pytest.mark.parametrize("length", [4, 20, 60])
def test_a_legend_is_not_cut_off_at_the_right(length: int) -> None:
    series = [Series(f"{n}" * length, [(1, 2), (2, 3)]) for n in range(6)]
    stacks = [StackedBar("b" * length, [(s.name, 1.0) for s in series], "6.00 ms")]
    for chart in (LineChart("t", "x", "y", series), StackedChart("t", "ms", stacks)):
        with plotting() as pyplot:
            figure, panel = pyplot.subplots(figsize=(WIDTH_IN, chart.height_in))
            figure.set_layout_engine("constrained")
            chart.draw(panel)
            add_legend(figure, panel, "title")
            figure.draw_without_rendering()
            assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1
            pyplot.close(figure)
