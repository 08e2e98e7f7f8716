from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.report.charts import BarChart, assign_colours, draw_charts
from tests.support.documents import make_charts

NAIVE = ["preprocess", "config", "s3"]
SERVER = ["client, socket and front end", "queue", "worker protocol"]


def test_a_picture_for_a_readme_brings_its_palette_and_its_dark_mode(tmp_path: Path) -> None:
    draw_charts(make_charts(), tmp_path / "new" / "a.svg")
    svg = (tmp_path / "new" / "a.svg").read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in svg and "var(--s0)" in svg


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
