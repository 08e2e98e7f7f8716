from __future__ import annotations

from pathlib import Path

import pytest

from offpath.profiling.report.page import render_page
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


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, long_page: str, width: int) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed")
    inner, needed = measure_widths(browser, long_page, tmp_path, width)
    assert inner == width
    assert needed <= inner
