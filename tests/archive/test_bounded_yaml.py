from __future__ import annotations

import pytest

from offpath.archive.bounded_yaml import load_yaml
from offpath.errors import WrongOption


def test_aliases_of_good_files_are_followed() -> None:
    text = "base: &base {batchSize: 8, list: [1, 2]}\nown:\n  <<: *base\n  top_k: 3\n"
    assert load_yaml(text, "x")["own"] == {"batchSize": 8, "list": [1, 2], "top_k": 3}


@pytest.mark.parametrize("text", ["", b"", "# nothing"])
def test_an_empty_file_is_none(text: str | bytes) -> None:
    assert load_yaml(text, "x") is None


def test_the_message_names_source_and_line() -> None:
    with pytest.raises(WrongOption, match="^x is not valid YAML: .* in line 3$"):
        load_yaml("a: 1\nb: [\n", "x")
