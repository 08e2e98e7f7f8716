"""The messages on docs/troubleshooting.md are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("archive", "handler", "offpath", "serving")
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# The last section is about other programs.
OURS = PAGE.partition("\n## From TorchServe")[0]


def list_messages(text: str) -> list[str]:
    """Returns what the rows quote before their meaning."""
    rows = re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`(.+?)`", row)]


@pytest.fixture(scope="module")
def texts() -> str:
    """Returns every literal text and every name of a class in the code."""

    def read(file: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            if isinstance(node, ast.ClassDef):
                yield node.name

    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return "\n".join(text for file in files for text in read(file))


@pytest.mark.parametrize("message", list_messages(OURS))
def test_every_part_of_a_message_is_in_the_code(texts: str, message: str) -> None:
    parts = [part.strip() for part in message.split("...")]
    assert [part for part in parts if part not in texts] == []
