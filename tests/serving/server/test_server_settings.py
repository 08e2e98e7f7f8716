from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.server.properties import parse_properties, read_properties


def test_comments_spaces_and_later_lines() -> None:
    text = "# why\n! also\n\n a = 1 \nb=x=y\na=2\n"
    assert parse_properties(text) == {"a": "2", "b": "x=y"}


def test_backslash_continues_a_line() -> None:
    text = 'models={\\\n  "echo": {}\\\n}\nnext=1'
    assert parse_properties(text) == {"models": '{"echo": {}}', "next": "1"}


def test_line_without_equals_sign_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("a=1\nbatch_size 8\n")
    with pytest.raises(ExpectedError, match=r"config.properties, line 2: 'batch_size 8'"):
        read_properties(path)


def test_missing_file_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="cannot read"):
        read_properties(tmp_path / "absent")
