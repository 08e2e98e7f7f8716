from __future__ import annotations

from xml.etree import ElementTree

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.in_process.profile_result import BatchSample
from offpath.profiling.in_process.profile_svg import (
    LETTER_WIDTH,
    MARGIN,
    WIDTH,
    save_svg,
)
from tests.profiling.profiles import make_handler, make_profile

SVG = "{http://www.w3.org/2000/svg}"


def draw(tmp_path, *handlers) -> ElementTree.Element:
    save_svg(make_profile(*handlers), tmp_path / "new" / "a.svg")
    return ElementTree.parse(tmp_path / "new" / "a.svg").getroot()


def test_the_picture_is_well_formed_and_has_its_own_background(tmp_path):
    root = draw(tmp_path, make_handler(), make_handler("na<i>ve & co", 10))
    assert root.tag == f"{SVG}svg"
    background = root.find(f"{SVG}rect")
    assert background.get("width") == str(WIDTH) and "--ground" in background.get(
        "style"
    )
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "na<i>ve & co" in texts and "2.31 ms an image" in texts


def test_labels_stay_inside_their_segments_and_the_picture(tmp_path):
    stages = {f"a stage called {n}": 0.001 * n for n in range(1, 12)}
    many = make_handler("many", batches=[BatchSample(8, 0.07, stages)])
    root = draw(tmp_path, many, make_handler())
    for group in root.iter(f"{SVG}g"):
        rect, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        end = float(rect.get("x")) + float(rect.get("width"))
        assert end <= WIDTH - MARGIN + 0.1
        if text is not None:
            assert len(text.text) * LETTER_WIDTH <= float(rect.get("width"))
    bottom = max(float(rect.get("y", 0)) for rect in root.iter(f"{SVG}rect"))
    assert bottom < float(root.get("height"))


def test_the_same_result_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        save_svg(make_profile(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_result_without_stages_and_another_suffix_are_refused(tmp_path):
    with pytest.raises(ExpectedError, match="no stages"):
        save_svg(make_profile(make_handler(batches=[])), tmp_path / "a.svg")
    with pytest.raises(ExpectedError, match=r"ending in \.svg"):
        save_svg(make_profile(), tmp_path / "a.png")
