"""`offpath cost`: computes a month's cost of serving from measured rates."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands.declared_options import option, takes_options
from offpath.commands.serve_options import FILE
from offpath.errors import WrongOption


@click.command("cost")
@takes_options
def command(
    result: Path | None = option(
        "Saved run of `offpath bench` or `tune` whose median rates are priced.", type=FILE
    ),
    workload: str | None = option("Workload of --result, if it has several."),
    peak_per_s: float | None = option("Peak rate in requests per second."),
    hourly_price: float | None = option("Dollars per hour of one instance."),
    instance: str | None = option(
        "Instance type in us-east-1 instead of --hourly-price, e.g. g4dn.xlarge."
    ),
) -> None:
    """Compute instances, $/month and $/million predictions of each server.

    The prediction log is priced twice: with one S3 put per record, and in batched objects.

    \b
    Example:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
    """
    from rich.console import Console

    from offpath.profiling.experiments import bill
    from offpath.profiling.report.terminal import print_document

    if result is None or peak_per_s is None:
        raise WrongOption("expected --result FILE and --peak-per-s RATE")
    if (hourly_price is None) == (instance is None):
        raise WrongOption(
            "no hourly price: expected --hourly-price DOLLARS or --instance TYPE, one of them;"
            f" known types: {', '.join(bill.load_prices().instances)}"
        )
    prices = bill.load_prices()
    hourly = prices.hourly(instance) if instance else hourly_price or 0.0
    rates, on_gpu, doubts = bill.read_rates(result, workload)
    if instance:
        prices.check_measured(on_gpu, instance)
    document = bill.document_of(rates, peak_per_s, hourly, doubts)
    print_document(document, Console())
