from __future__ import annotations

from offpath.serving.server.server_settings import parse_properties


def test_comments_spaces_and_later_lines() -> None:
    text = "# why\n! also\n\n a = 1 \nb=x=y\na=2\n"
    assert parse_properties(text) == {"a": "2", "b": "x=y"}


def test_backslash_continues_a_line() -> None:
    text = 'models={\\\n  "echo": {}\\\n}\nnext=1'
    assert parse_properties(text) == {"models": '{"echo": {}}', "next": "1"}
