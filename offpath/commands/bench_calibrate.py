"""`offpath bench calibrate`: can the load generator be trusted on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands import bench_options as options
from offpath.handler.errors import ExpectedError


@click.command("calibrate")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=5,
    show_default=True,
    help="Window against the server that answers at once.",
)
@click.option(
    "--against",
    "result_paths",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Results of `bench compare` whose fastest rates the generator must exceed five times.",
)
@click.option(
    "--generators",
    default="locust,wrk,perf_analyzer,loadgen",
    show_default=True,
    help="The last two are candidates: measured where they are installed.",
)
@options.json_option
def command(
    seconds: float,
    result_paths: tuple[Path, ...],
    generators: str,
    json_path: Path | None,
) -> None:
    """Load generators: their own rate and CPU, percentiles and counts against a server's, a stall.

    Takes about five minutes with all four. Exits with 1 when locust or wrk has a percentile that is
    off by more than 2 %, miscounts a failure, hides a stall in open loop, or is not five times as
    fast as --against.
    """
    from rich.console import Console

    from offpath.profiling.experiments.calibration import CALIBRATION, calibrate
    from offpath.profiling.experiments.calibration_report import print_calibration

    fastest = find_fastest(result_paths)
    result = calibrate(
        options.command_line(),
        seconds,
        fastest,
        lambda line: click.echo(line, err=True),
        options.split_names(generators),
    )
    print_calibration(result, Console())
    if json_path is not None:
        CALIBRATION.save(result, json_path)
    if result.problems:
        raise ExpectedError("the load generator is doubtful here, see above")


def find_fastest(result_paths: tuple[Path, ...]) -> dict[str, float]:
    """Workload -> the fastest rate of all results; thin clients' under "npy"."""
    from offpath.profiling.core.result import BENCH
    from offpath.profiling.core.summary import summarise

    fastest: dict[str, float] = {}
    for path in result_paths:
        for row in summarise(BENCH.load(path), None):
            name = "npy" if row.server.endswith("-thin") else row.workload
            fastest[name] = max(fastest.get(name, 0.0), row.rate)
    return fastest
