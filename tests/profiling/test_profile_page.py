from __future__ import annotations

import re

import pytest

from offpath.profiling.in_process.profile_page import make_page, write_page
from tests.profiling.profiles import (
    make_function,
    make_handler,
    make_line,
    make_profile,
    make_server,
)
from tests.support.pages import find_browser, list_requests, measure_widths, read_page


def make_full_page() -> str:
    functions = [
        make_function("put_object", "S3", 2.0),
        make_function("go", "forward", 1.0),
    ]
    lines = [make_line(7, 1.0, "    time.sleep(0.01)  # " + "why " * 40)]
    ours = make_handler(
        functions=functions, lines=lines, files=["/some/" + "folder/" * 30]
    )
    return make_page(
        make_profile(ours, make_handler("naive", 10), make_server("served"))
    )


def find_text(html: str) -> str:
    return " ".join(" ".join(read_page(html).texts).split())


def test_a_page_says_what_was_run_where_and_on_what():
    text = find_text(make_full_page())
    for said in (
        "offpath profile stages --handler offpath --handler naive",
        "some, 2 cores",
        "photos: 32 photographs of 55 kB mean",
        "2026-01-01 00:00:00 UTC",
        "torch 2.14.1",
        "batch size 8",
    ):
        assert said in text


def test_ours_stands_beside_the_baseline_on_one_scale():
    html = make_full_page()
    stages = html[
        html.index("<h2>Stages</h2>") : html.index("<h2>Stages, as shares</h2>")
    ]
    widths = [
        sum(map(float, re.findall(r"width:([\d.]+)%", bar)))
        for bar in stages.split('class="stack"')[1:]
    ]
    assert widths == pytest.approx([100 * 18.5 / 176, 100], abs=0.01)


def test_the_waterfall_shows_the_batch_nearest_the_median():
    text = find_text(make_full_page())
    assert (
        "offpath: 8 images in 18.0 ms" in text or "offpath: 8 images in 19.0 ms" in text
    )


def test_hot_functions_and_lines_are_named_with_their_places():
    text = find_text(make_full_page())
    assert "put_object" in text and "folder/handler.py:12" in text
    assert "time.sleep(0.01)" in text and "preprocess (handler.py)" in text


def test_a_servers_account_is_shown_with_its_doubts():
    text = find_text(make_full_page())
    assert "client, socket and front end" in text and "19.5 ms" in text
    assert "served: only 30 batches were counted" in text


def test_a_page_loads_nothing_and_its_tags_match():
    assert list_requests(make_full_page()) == []


@pytest.mark.parametrize("kind", ["flame", "overhead"])
def test_a_result_without_samples_is_still_a_page(kind, tmp_path):
    result = make_profile(make_handler(batches=[], files=["a.html"]), kind=kind)
    write_page(result, tmp_path / "new" / "page.html")
    assert "a.html" in (tmp_path / "new" / "page.html").read_text()


def test_a_page_fits_a_phone(tmp_path):
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed")
    inner, needed = measure_widths(browser, make_full_page(), tmp_path, 390)
    assert inner == 390 and needed <= inner
