"""Reads YAML that strangers may have written, in archives, presets, price files and options."""

from __future__ import annotations

from typing import Any

import yaml

from offpath.errors import WrongOption

MOST_CHARACTERS = 100_000


def load_yaml(text: str | bytes, source: str) -> Any:
    """Parses YAML of at most MOST_CHARACTERS, which an alias counts as often as it is followed.

    Args:
        source: where it comes from, for the message.

    Raises:
        WrongOption: the text is too long, is no YAML, or holds a value that Python cannot print.
    """
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"longer than {MOST_CHARACTERS:,} characters")
        value = yaml.load(text, _BoundedLoader)
        repr(value)  # Python refuses to print some large numbers.
    # PyYAML lets errors of many kinds through: `!!bool x` is a KeyError, a deep list a recursion.
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = " ".join(f"{getattr(error, 'problem', None) or error}".split())
        raise WrongOption(f"{source} is not valid YAML: {problem}{line}") from error
    return value


class _BoundedLoader(yaml.SafeLoader):
    """Counts characters as if each alias were written out: ten lines can stand for gigabytes."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._characters = 0
        self._length_of: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._characters
        node = super().compose_node(parent, index)
        if is_alias:
            # A node without a length is not complete yet, so it contains itself.
            self._characters += self._length_of.get(id(node), MOST_CHARACTERS)
        else:
            own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            self._characters += 1 + own
            self._length_of[id(node)] = self._characters - before
        if self._characters > MOST_CHARACTERS:
            raise ValueError(f"its aliases stand for more than {MOST_CHARACTERS:,} characters")
        return node
