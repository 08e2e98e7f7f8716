"""Declares the options of a command as fields of a dataclass; the command is a function of it."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar

import click

from offpath.commands.shared_options import add_options

Options = TypeVar("Options")


def option(text: str, *names: str, **more: Any) -> Any:
    """Declares a field as an option. The field gives its name and type, unless others are given.

    Args:
        text: for `--help`.
        names: of the option, such as `--from`.
        more: further arguments of click.option.
    """
    arguments = {"make": click.option, "names": names, "help": text, "show_default": True, **more}
    return field(default=more.get("default"), metadata=arguments)


def argument(metavar: str, **more: Any) -> Any:
    """Declares a field as a positional argument; takes further arguments of click.argument."""
    return field(metadata={"make": click.argument, "names": (), "metavar": metavar, **more})


def takes(kind: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Returns a decorator that makes a function of a dataclass a function of click's parameters.

    A field whose type is another dataclass of options stands for all of its options.
    """

    def decorate(command: Callable[[Options], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**given: object) -> None:
            command(_gather(kind, given))

        return add_options(*_list_parameters(kind))(call)

    return decorate


def _list_parameters(kind: type[Any]) -> Iterator[Callable[[Any], Any]]:
    hints = typing.get_type_hints(kind)
    for one in fields(kind):
        hint, more = hints[one.name], dict(one.metadata)
        if is_dataclass(hint):
            yield from _list_parameters(hints[one.name])
        elif more:
            make, names = more.pop("make"), more.pop("names")
            if make is click.option and not names:
                names = (f"--{one.name.replace('_', '-')}",)
            if hint is bool:
                more["is_flag"] = True
            # Of `int | None` and `tuple[int, ...]`, int.
            more.setdefault("type", (*typing.get_args(hint), hint)[0])
            yield make(*names, one.name, **more)


def _gather(kind: type[Options], given: Mapping[str, object]) -> Options:
    values: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if is_dataclass(hint):
            values[name] = _gather(hint, given)
        elif name in given:
            values[name] = given[name]
    return kind(**values)
