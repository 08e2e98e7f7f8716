"""Reads a YAML section into a frozen dataclass whose fields declare what they accept.

    @dataclass(frozen=True)
    class Settings:
        top_k: int = setting(5, integer(1, 1000))

Every error names the key, the value and what is accepted.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from offpath.handler.errors import ConfigError

# Maps (value in the section, full key) to the field's value, or raises ConfigError.
Reader = Callable[[Any, str], Any]
REQUIRED = dataclasses.MISSING
# Likeness of a name to the one that was meant: by default one letter of three may be wrong. Where a
# name may be right although it is not known, a stricter likeness keeps false alarms rare.
LIKE, MUCH_LIKE = 0.66, 0.75


def setting(default: Any, reader: Reader) -> Any:
    """Declares a dataclass field that `read_section` can read."""
    return dataclasses.field(default=default, metadata={"reader": reader})


def read_section(settings_class: type, section: object, where: str) -> dict[str, Any]:
    """Returns the checked values of a section by field, without the fields that are not given.

    Args:
        settings_class: a dataclass whose fields are `setting`s.
        section: the parsed YAML; None stands for an empty section.
        where: the section's name, for error messages.

    Raises:
        ConfigError: the section is not a mapping, a key is unknown, or a value is wrong.
    """
    readers = {one.name: one.metadata["reader"] for one in dataclasses.fields(settings_class)}
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise wrong(where, section, f"a mapping with {', '.join(readers)}")
    for key in section:
        if key not in readers:
            hint = suggest(str(key), readers) or f"; accepted: {', '.join(readers)}"
            raise ConfigError(f"unknown key {key!r} in {where}{hint}")
    return {key: readers[key](value, f"{where}.{key}") for key, value in section.items()}


def suggest(name: str, known: Iterable[str], likeness: float = LIKE) -> str:
    """Returns the end of a message that names the nearest known spelling; empty without one."""
    folded = {re.sub(r"[\W_]", "", one).lower(): one for one in known}
    near = difflib.get_close_matches(re.sub(r"[\W_]", "", name).lower(), folded, 1, likeness)
    return f"; did you mean {folded[near[0]]}" if near else ""


def wrong(key: str, value: object, accepted: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}; accepted: {accepted}")


def one_that(accepted: str, is_accepted: Callable[[Any], bool]) -> Reader:
    """Accepts the values for which a predicate is true."""

    def read(value: Any, key: str) -> Any:
        if not is_accepted(value):
            raise wrong(key, value, accepted)
        return value

    return read


def integer(low: int, high: int) -> Reader:
    """Accepts an integer in a range; true and false are not integers."""
    return one_that(
        f"an integer from {low} to {high}",
        lambda value: _is(value, int) and low <= value <= high,
    )


def size(low: int, high: int) -> Reader:
    """Accepts an integer in a range, or two of them as a text: height x width."""

    def is_size(value: Any) -> bool:
        is_text = isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}x[0-9]{1,5}", value)
        sides = map(int, value.split("x")) if is_text else [value]
        return all(_is(side, int) and low <= side <= high for side in sides)

    return one_that(f"an integer from {low} to {high}, or HEIGHTxWIDTH", is_size)


def number(low: float, high: float) -> Reader:
    """Accepts an integer or a float in a range; NaN is out of every range."""
    return one_that(
        f"a number from {low:g} to {high:g}",
        lambda value: _is(value, int, float) and low <= value <= high,
    )


def positive(high: float) -> Reader:
    return one_that(
        f"a number above 0, up to {high:g}",
        lambda value: _is(value, int, float) and 0 < value <= high,
    )


def flag() -> Reader:
    return one_that("true or false", lambda value: isinstance(value, bool))


def mapping() -> Reader:
    return one_that("a mapping", lambda value: isinstance(value, Mapping))


def choice(names: Sequence[str]) -> Reader:
    return one_that("one of " + ", ".join(names), lambda value: value in names)


def text() -> Reader:
    """Accepts non-empty ASCII text, because such settings go into headers."""
    return one_that(
        "a non-empty ASCII text",
        lambda value: isinstance(value, str) and value != "" and value.isascii(),
    )


def off_or_url() -> Reader:
    """Accepts `off` (which YAML reads as false) or the URL of an HTTP server."""
    check = one_that(
        "off, or a URL such as http://127.0.0.1:4318",
        lambda value: isinstance(value, str)
        and (value == "off" or value.startswith(("http://", "https://"))),
    )
    return lambda value, key: check("off" if value is False else value, key)


def optional(reader: Reader) -> Reader:
    """Accepts None besides the values that `reader` accepts."""
    return lambda value, key: None if value is None else reader(value, key)


def per_channel(accepted: str, reader: Reader) -> Reader:
    """Accepts a list with one value per channel, or one value for all; returns a tuple."""

    def read(value: Any, key: str) -> tuple[Any, ...]:
        values = value if isinstance(value, (list, tuple)) else [value]
        try:
            if len(values) in (1, 3):
                return tuple(reader(one, key) for one in values)
        except ConfigError:
            pass  # the error below shows the whole list
        raise wrong(key, value, accepted)

    return read


def section(settings_class: type) -> Reader:
    return lambda value, key: settings_class(**read_section(settings_class, value, key))


def _is(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
