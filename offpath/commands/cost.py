"""`offpath cost`: computes a month's cost of serving from measured rates."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands.serve_options import FILE
from offpath.errors import WrongOption


@click.command("cost")
@click.option(
    "--result",
    type=FILE,
    help="Saved run of `offpath bench` or `tune` whose median rates are priced.",
)
@click.option("--workload", help="Workload of --result, if it has several.")
@click.option("--peak-per-s", type=float, help="Peak rate in requests per second.")
@click.option("--hourly-price", type=float, help="Dollars per hour of one instance.")
@click.option(
    "--instance",
    help="Instance type in us-east-1 instead of --hourly-price, e.g. g4dn.xlarge.",
)
@click.option(
    "--example",
    type=click.Choice(["published"]),
    help="Compute the published $803 against $384 from its inputs.",
)
def command(
    result: Path | None,
    workload: str | None,
    peak_per_s: float | None,
    hourly_price: float | None,
    instance: str | None,
    example: str | None,
) -> None:
    """Compute instances, $/month and $/million predictions of each server.

    The prediction log is priced twice: with one S3 put per record, and in batched objects.

    \b
    Examples:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
      offpath cost --example published
    """
    from rich.console import Console

    from offpath.profiling.experiments import bill
    from offpath.profiling.report.terminal import print_document

    if example:
        document = bill.published_document()
    elif result is None or peak_per_s is None:
        raise WrongOption("expected --result FILE and --peak-per-s RATE, or --example published")
    elif (hourly_price is None) == (instance is None):
        raise WrongOption(
            "no hourly price: expected --hourly-price DOLLARS or --instance TYPE, one of them;"
            f" known types: {', '.join(bill.load_prices().instances)}"
        )
    else:
        prices = bill.load_prices()
        hourly = prices.hourly(instance) if instance is not None else hourly_price or 0.0
        rates, on_gpu, doubts = bill.read_rates(result, workload)
        if instance is not None:
            prices.check_measured(on_gpu, instance)
        document = bill.document_of(rates, peak_per_s, hourly, doubts)
    print_document(document, Console())
