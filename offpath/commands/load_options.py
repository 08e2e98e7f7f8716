"""The options of a load, declared once for the commands that put servers under load."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from offpath.commands.run_outputs import read_numbers
from offpath.commands.shared_options import Command, add_options

CLIENTS_HELP = "Concurrent clients. Each sends its next request after the reply."


def load_options(
    *,
    clients: str,
    seconds: float,
    warm_up_s: float,
    warm_up_help: str,
    clients_help: str = CLIENTS_HELP,
    seconds_help: str = "Length of a window.",
    least_s: float = 0.0,
    min_replies: int = 0,
    has_rate: bool = False,
) -> Callable[[Command], Command]:
    """Adds the options of a load to a command.

    The command gets `load`, a `profiling.load.parameters.Load`, and the tuple `clients`.

    Args:
        clients: default numbers of clients, like "1,8".
        seconds: default length of a window, which is at least `least_s`.
        warm_up_s: default seconds of load before a window.
        min_replies: replies that a window of the default length goes on for.
        has_rate: adds --rate.
    """
    options = [
        click.option(
            "--clients",
            default=clients,
            show_default=True,
            metavar="N,...",
            help=clients_help,
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(least_s),
            default=None if min_replies else seconds,
            show_default=not min_replies,
            help=seconds_help,
        ),
        click.option(
            "--warm-up",
            "warm_up_s",
            type=click.FloatRange(0),
            default=warm_up_s,
            show_default=True,
            help=warm_up_help,
        ),
        click.option(
            "--generator",
            type=click.Choice(["locust", "wrk"]),
            default="locust",
            show_default=True,
            help="Program that sends the load. wrk needs less CPU and must be installed.",
        ),
    ]
    if has_rate:
        rate_option = click.option(
            "--rate",
            type=click.FloatRange(0, min_open=True),
            help="Open loop: this many requests per second on average, at random times;"
            " latency counts from the time a request was due.",
        )
        options.insert(2, rate_option)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def collect(
            clients: str,
            warm_up_s: float,
            generator: str,
            seconds: float | None,
            rate: float | None = None,
            **others: Any,
        ) -> Any:
            # Imported here: `--help` needs none of it.
            from offpath.profiling.load.parameters import Load

            load = Load(
                seconds=default_seconds if seconds is None else seconds,
                warm_up_s=warm_up_s,
                rate=rate,
                min_replies=min_replies if seconds is None else 0,
                generator=generator,
            )
            return command(load=load, clients=read_numbers("--clients", clients, "8,32"), **others)

        return add_options(*options)(collect)  # type: ignore[return-value]

    default_seconds = seconds
    return decorate
