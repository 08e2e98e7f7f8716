"""`--set KEY=VALUE`: settings of the handler on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offpath.handler.errors import WrongOption


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """VALUE is read as YAML, so numbers, lists and booleans work.

    Raises:
        WrongOption: no `=` in it, or no YAML after it.
    """
    import yaml

    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise WrongOption(f"--set {text!r}; expected KEY=VALUE")
        try:
            settings[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: 2026-13-45
            # YAML's own message draws the place over several lines.
            problem = getattr(error, "problem", error)
            raise WrongOption(f"--set {text!r}: {problem}") from error
    return settings
