"""The files and names in docs/where-things-go.md exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "where-things-go.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w./-]+/[\w./-]*)`", PAGE))))
def test_every_path_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("name", "path"),
    sorted(set(re.findall(r"`(\w+)` (?:in|of)\s+`([\w./-]+\.py)`", PAGE))),
)
def test_every_name_on_the_page_is_in_its_file(name: str, path: str) -> None:
    pattern = rf"^ *(async )?(def|class) {name}\b|^{name}\b.*="
    assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)
