"""Makes the relative links of a Markdown file absolute, in place, for a page elsewhere.

usage: python scripts/absolute_links.py FILE REPOSITORY_URL TAG
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
IMAGES = {".svg", ".png", ".jpg"}


def make_absolute(text: str, url: str, tag: str) -> str:
    """Returns the text with absolute links; images are shown from the files themselves."""

    def replace(match: re.Match[str]) -> str:
        view = "raw" if Path(match[1]).suffix in IMAGES else "blob"
        return f"]({url.rstrip('/')}/{view}/{tag}/{match[1]})"

    return TARGET.sub(replace, text)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(make_absolute(file.read_text("utf-8"), *sys.argv[2:]), "utf-8")
