"""`offpath bench log-rounds|log-outage|log-cost`: the prediction log under a real TorchServe."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from offpath.handler.errors import ExpectedError
from offpath.serving.interrupts import Terminated, stopping_on_signals

LISTED_IDS = 10


def _common(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            default=lambda: min(os.cpu_count() or 1, 4),
            show_default="the cores, at most 4",
            help="Workers of each server.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Result as JSON."),
    ):
        function = option(function)
    return function


@click.command("log-rounds")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--clients", default=16, show_default=True, type=click.IntRange(1, 256))
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(["kill a worker", "kill the server", "scale down and up"]),
    help="Only this kind; may be given several times.",
)
@click.option("--seed", default=0, show_default=True, help="Chooses kinds and moments.")
@_common
def log_rounds(
    rounds: int,
    clients: int,
    events: tuple[str, ...],
    seed: int,
    workers: int,
    as_json: bool,
) -> None:
    """Kill workers and servers under load; is every answered request in the bucket once?

    A round: load, then at a random moment SIGKILL to a worker, SIGKILL to the whole server, or the
    workers scaled to none and back; then go on. At the end `offpath logs ship`, and each request id
    that a client was answered 200 is looked for in the bucket. About 10 s a round. Exits with 1
    when one is lost or double.
    """
    from offpath.profiling.experiments.log_trials.rounds import EVENTS, run_rounds

    with _stopping():
        result = run_rounds(rounds, clients, workers, seed, _say, events or EVENTS)
    _print(dataclasses.asdict(result), as_json)
    _check(result.lost, result.double)


@click.command("log-outage")
@click.option(
    "--stage-s",
    default=15.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Length of each of the four stages.",
)
@click.option("--turns", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--clients", default=16, show_default=True, type=click.IntRange(1, 256))
@_common
def log_outage(
    stage_s: float, turns: int, clients: int, workers: int, as_json: bool
) -> None:
    """Take S3 away under load: refused, 503 SlowDown, hanging, 403; then give it back.

    Takes turns with a server whose log is off, and compares p99. Exits with 1 when a request
    failed, or a record is lost or double.
    """
    from offpath.profiling.experiments.log_trials.outage import run_outage

    with _stopping():
        result = run_outage(stage_s, clients, workers, turns, _say)
    _print(dataclasses.asdict(result), as_json)
    if result.failed:
        raise ExpectedError(f"{result.failed} requests failed during the outage")
    _check(result.lost, result.double)


@click.command("log-cost")
@click.option("--turn-s", default=6.0, show_default=True, type=click.FloatRange(min=1))
@click.option("--turns", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--clients", default=32, show_default=True, type=click.IntRange(1, 256))
@click.option("--latency-ms", default=30.0, show_default=True, help="Of a put.")
@_common
def log_cost(
    turn_s: float,
    turns: int,
    clients: int,
    latency_ms: float,
    workers: int,
    as_json: bool,
) -> None:
    """What the log costs: off, on, and one put_object per prediction, in turns."""
    from offpath.profiling.experiments.log_trials.cost import run_cost

    with _stopping():
        result = run_cost(turn_s, turns, clients, workers, latency_ms / 1e3, _say)
    _print(dataclasses.asdict(result), as_json)


COMMANDS = (log_rounds, log_outage, log_cost)


def register(group: click.Group) -> None:
    """Adds the trials to `offpath bench`."""
    for command in COMMANDS:
        group.add_command(command)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM ends the servers as Ctrl-C does: without it they would outlive this process."""
    try:
        with stopping_on_signals():
            yield
    except Terminated:
        raise SystemExit(143) from None


def _say(line: str) -> None:
    click.echo(line, err=True)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, value in result.items():
        if isinstance(value, list) and name in ("lost", "double"):
            click.echo(f"{name}: {len(value)} {' '.join(value[:LISTED_IDS])}".rstrip())
        elif isinstance(value, float):
            click.echo(f"{name}: {value:.3f}")
        else:
            click.echo(f"{name}: {value}")


def _check(lost: list[str], double: list[str]) -> None:
    if lost or double:
        raise ExpectedError(f"{len(lost)} records lost, {len(double)} double")
