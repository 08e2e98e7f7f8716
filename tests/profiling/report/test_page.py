from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpath.profiling.report.page import render_page, write_page
from tests.support.browser import find_browser, measure_widths
from tests.support.documents import make_document
from tests.support.pages import list_requests, read_page

HOSTILE = '<script>alert("x")</script> & {{ 7919 * 7919 }} $a$'
LONG = "a_name_without_any_place_to_break_it_" * 4


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(make_document())


@pytest.fixture(scope="module")
def long_page() -> str:
    """A page whose every text is longer than a screen is wide."""
    return render_page(make_document(LONG))


def test_a_page_loads_nothing_from_anywhere(page: str) -> None:
    assert list_requests(page) == []


def test_names_cannot_write_markup_or_templates() -> None:
    html = render_page(make_document(HOSTILE))
    reader = read_page(html)
    assert "<script" not in html and "62710561" not in html
    # In the title, the tables and the charts alike, and no chart takes it for a formula.
    assert sum(HOSTILE in text for text in reader.texts) > 15


def test_every_picture_says_in_words_what_it_shows(page: str) -> None:
    drawings = page.split("<svg")[1:]
    assert len(drawings) == 3
    assert all('role="img" aria-label="offpath"' in p.split(">")[0] for p in drawings)


def test_charts_take_the_pages_colours_so_that_dark_mode_is_theirs_too(
    page: str,
) -> None:
    assert "prefers-color-scheme: dark" in page
    drawn = "".join(part.split("</svg>")[0] for part in page.split("<svg")[1:])
    assert "var(--s0)" in drawn and "var(--text)" in drawn
    assert "#0072b2" not in drawn and "#1f2328" not in drawn


def test_warnings_of_one_kind_are_one_line_with_the_others_on_demand() -> None:
    spread = [f"spread: the rounds of {name} differ" for name in "abc"]
    document = replace(make_document(), warnings=[spread[0], "noise: x", *spread[1:]])
    reader = read_page(render_page(document))
    texts = [text.strip() for text in reader.texts if text.strip()]
    first = texts.index("spread, 3 times, first: the rounds of a differ")
    assert texts[first + 1 : first + 3] == [
        "the rounds of b differ",
        "the rounds of c differ",
    ]
    assert texts[first + 3] == "noise: x"


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, long_page: str, width: int) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed")
    inner, needed = measure_widths(browser, long_page, tmp_path, width)
    assert inner == width
    assert needed <= inner


def test_a_page_is_written_with_its_folder(tmp_path: Path) -> None:
    write_page(make_document("ü"), tmp_path / "new" / "page.html")
    assert "<h1>ü</h1>" in (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
