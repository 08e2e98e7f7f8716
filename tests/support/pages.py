"""Checks a page for what a reader's browser would load and show."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Attributes by which a page loads something.
LOADING = {"src", "srcset", "data", "poster", "action", "background"}
# Elements that load or run something.
RUNNING = {"link", "script", "iframe", "image", "img", "object", "embed", "base", "form"}


class Reader(HTMLParser):
    """Collects what a page loads or runs, and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in RUNNING:
            self.loads.append(tag)
        for key, value in attrs:
            is_far = tag == "use" and key.endswith("href") and not (value or "").startswith("#")
            if key in LOADING or key.startswith("on") or is_far:
                self.loads.append(f"{tag} {key}={value}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read_page(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def list_requests(html: str) -> list[str]:
    """Lists everything that a browser would fetch to show the page."""
    return read_page(html).loads + re.findall(r"url\([^#)][^)]*\)|@import[^;]*", html)
