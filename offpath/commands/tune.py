"""`offpath tune`: measures a grid of settings of an archive within a latency bound."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from offpath.commands.declared_options import option, takes_options
from offpath.commands.run_outputs import (
    Numbers,
    Outputs,
    command_line,
    measuring,
    present,
    refuse_existing,
)
from offpath.commands.shared_options import ARCHIVE, CLIENTS_HELP, FILE, SERVERS
from offpath.errors import ExpectedError


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `offpath tune`."""

    mar: Path = option(
        "The archive. Its own settings are measured first.", type=ARCHIVE, required=True
    )
    p95_ms: float = option(
        "Latency bound: 95 % of the replies must come within this time.",
        type=click.FloatRange(0, min_open=True),
        required=True,
    )
    server: str = option(
        "Server that the archive is measured on.", type=SERVERS, default="torchserve"
    )
    workload: str = option("photos-1200k, photos-55k or a folder of images.", default="photos-55k")
    clients: int = option(CLIENTS_HELP, type=click.IntRange(1), default=32)
    batch_sizes: tuple[int, ...] | None = option(
        "Batch sizes to measure.  [default: half the archive's, its own, twice that]",
        "--batch-size",
        type=Numbers(),
    )
    delays_ms: tuple[int, ...] | None = option(
        "Delays to measure.  [default: 1,5]", "--max-batch-delay-ms", type=Numbers()
    )
    workers: tuple[int, ...] | None = option(
        "Numbers of workers to measure.  [default: half the cores, the cores]", type=Numbers()
    )
    rounds: int = option(
        "Number of times that each setting is measured.", type=click.IntRange(2), default=3
    )
    output: Path = option(
        "Preset file to write, for `offpath archive --preset FILE`.",
        type=FILE,
        default=Path("tuned.yaml"),
    )
    outputs: Outputs


@click.command("tune")
@takes_options
def command(options: TuneOptions) -> None:
    """Measure a grid of batch sizes, delays and workers, and name the best setting.

    Each round starts a server for each setting in turn, the archive's own first. Another setting
    wins only if it is clearly faster in every round and keeps the latency bound. The winner is
    written as a preset. Ctrl-C stops the server; --json keeps the raw values so far.

    \b
    Examples:
      offpath tune --mar store/classifier.mar --p95-ms 200 --workload ~/images --html tune.html
      offpath tune --mar store/classifier.mar --p95-ms 100 --workers 2,4 --batch-size 8
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments import grid_search

    # Wrong options are refused before minutes of measuring.
    output, outputs = options.output, options.outputs
    refuse_existing("--output", output)
    refuse_existing("--json", outputs.json_path)
    choices = grid_search.TuneChoices(
        mar=options.mar,
        p95_ms=options.p95_ms,
        server=options.server,
        workload=options.workload,
        clients=options.clients,
        rounds=options.rounds,
        batch_sizes=options.batch_sizes or (),
        delays_ms=options.delays_ms or (),
        workers=options.workers or (),
        command=command_line(),
    )
    with measuring(outputs, "windows") as progress:
        run = grid_search.run_tune(choices, progress, outputs.save)
    result = grid_search.read_result(run)
    if result.verdict.winner is not None:
        # The preset is written first: a failing page must not lose it.
        grid_search.write_preset(output, result)
    present(run, grid_search.document_of(run), outputs)
    if result.verdict.winner is None:
        raise ExpectedError(f"{result.verdict.text} (--p95-ms, --clients)")
    if result.verdict.winner == result.own:
        click.echo(f"keep the archive's setting: {result.own}; nothing to rebuild")
    else:
        click.echo(f"best: {result.verdict.winner}; build with: offpath archive --preset {output}")
