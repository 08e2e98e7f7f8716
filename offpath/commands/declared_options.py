"""Declares click's options as the parameters of a command, or as the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import click


@dataclass(frozen=True)
class DeclaredOption:
    """The arguments of click.option or click.argument, in place of a parameter's default."""

    make: Callable[..., Any]
    names: tuple[str, ...]
    more: Mapping[str, Any]


def option(text: str, *names: str, **more: Any) -> Any:
    """Declares an option, which has the parameter's name and type unless others are given.

    Args:
        text: for `--help`.
        names: such as `--from`.
        more: further arguments of click.option.
    """
    return DeclaredOption(click.option, names, {"help": text, "show_default": True, **more})


def argument(metavar: str, **more: Any) -> Any:
    """Declares a positional argument, with further arguments of click.argument."""
    return DeclaredOption(click.argument, (), {"metavar": metavar, **more})


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that its parameters declare, in order of `--help`.

    A parameter or field whose type is a dataclass stands for the options that this one declares.
    """

    @functools.wraps(command)
    def call(**given: object) -> None:
        _call(command, given)

    # The option that is applied last is the first in --help.
    for decorate in reversed(list(_list_options(command))):
        call = decorate(call)
    return call


def _list_options(target: Callable[..., Any]) -> Iterator[Callable[[Any], Any]]:
    hints = typing.get_type_hints(target)
    for name, parameter in inspect.signature(target).parameters.items():
        hint, declared = hints[name], parameter.default
        if is_dataclass(hint):
            yield from _list_options(hints[name])
        elif isinstance(declared, DeclaredOption):
            names, more = declared.names, dict(declared.more)
            if declared.make is click.option and not names:
                names = (f"--{name.replace('_', '-')}",)
            if hint is bool:
                more["is_flag"] = True
            # Of `int | None` and `tuple[int, ...]`, int.
            more.setdefault("type", (*typing.get_args(hint), hint)[0])
            yield declared.make(*names, name, **more)


def _call(target: Callable[..., Any], given: Mapping[str, object]) -> Any:
    values = {}
    for name, hint in typing.get_type_hints(target).items():
        if is_dataclass(hint):
            values[name] = _call(typing.cast(type, hint), given)
        elif name in given:
            values[name] = given[name]
    return target(**values)
