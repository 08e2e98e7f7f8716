"""`offpath cost`: computes a month's cost of serving, from measured rates or from numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.serve_options import FILE
from offpath.commands.shared_options import json_option
from offpath.handler.errors import WrongOption

if TYPE_CHECKING:
    from offpath.profiling.experiments.cost import Demand, Prices
    from offpath.profiling.report.document import Document

# Name, default and help of numbers that are passed on unchanged.
DEMAND_OPTIONS = (
    ("head-room", 0.3, "Share of an instance's rate that stays free at the peak."),
    ("hours", 730.0, "Hours per month that the instances run."),
    ("min-instances", 1, "Least number of instances; with 2, one may fail."),
)
LOG_OPTIONS = (
    ("record-bytes", 700.0, "Size of one record of the prediction log."),
    (
        "retention-days",
        30.0,
        "Days that records stay in S3; 0: storage is not counted.",
    ),
    ("puts-per-record", 1.0, "S3 requests per record, without batching."),
    (
        "compressed-share",
        0.25,
        "Size of a record in a batched object relative to its uncompressed size.",
    ),
    ("workers", 2, "Workers of an instance; each fills objects of its own."),
)


def number_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of demand and log."""
    for name, default, text in reversed(DEMAND_OPTIONS + LOG_OPTIONS):
        option = click.option(f"--{name}", default=default, show_default=True, help=text)
        command = option(command)
    return command


@click.command("cost")
@click.option(
    "--result",
    "result_path",
    type=FILE,
    help="Saved run of `offpath bench` or `tune` whose median rates are priced.",
)
@click.option("--workload", help="Workload of --result, if it has several.")
@click.option(
    "--rate-per-instance",
    "rates",
    multiple=True,
    metavar="NAME=RATE",
    help="Requests per second that one instance answers. Can be repeated.",
)
@click.option("--peak-per-s", type=float, help="Peak rate in requests per second.")
@click.option("--peak-per-minute", type=float, help="Peak rate in requests per minute.")
@click.option(
    "--mean-per-s",
    type=float,
    help="Mean rate in requests per second, for the log.  [default: the peak]",
)
@click.option(
    "--paid-instances",
    "paid",
    multiple=True,
    metavar="NAME=N",
    help="Instances on your bill, if they differ from those needed. Can be repeated.",
)
@click.option("--hourly-price", type=float, help="Dollars per hour of one instance.")
@click.option(
    "--instance",
    help="Instance type of the price file instead of --hourly-price, e.g. g4dn.xlarge.",
)
@click.option(
    "--allow-mixed",
    is_flag=True,
    help="Price rates measured on a CPU for a GPU instance, or the reverse, with a warning.",
)
@number_options
@click.option(
    "--records-per-object",
    type=float,
    help="Records in a batched object.  [default: what the spool's 8 MiB and 60 s make of the mean"
    " rate]",
)
@click.option(
    "--prices",
    "prices_path",
    type=FILE,
    help="Your price file instead of profiling/experiments/prices.yaml (us-east-1).",
)
@click.option(
    "--example",
    type=click.Choice(["published"]),
    help="Compute the published $803 against $384 from its inputs.",
)
@json_option("Print JSON.")
@click.option("--markdown", is_flag=True, help="Print tables for a README or an issue.")
def command(as_json: bool, markdown: bool, **options: Any) -> None:
    """Compute instances, $/month and $/million predictions of each server.

    The prediction log is priced twice: with one S3 put per record, and in batched objects.

    \b
    Examples:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
      offpath cost --rate-per-instance a=47 --rate-per-instance b=183 --peak-per-minute 120 \\
        --hourly-price 0.526
      offpath cost --example published
    """
    from rich.console import Console

    from offpath.profiling.experiments import cost_report
    from offpath.profiling.experiments.cost import PRICES_FILE, load_prices
    from offpath.profiling.report.markdown import format_markdown
    from offpath.profiling.report.terminal import print_document

    prices = load_prices(options["prices_path"] or PRICES_FILE)
    if options["example"]:
        document = cost_report.published_document(prices)
        content = cost_report.published_json(prices)
    else:
        document, content = compute_month(options, prices)
    if as_json:
        click.echo(json.dumps(content, indent=1))
    elif markdown:
        click.echo(format_markdown(document), nl=False)
    else:
        print_document(document, Console())


def compute_month(options: Mapping[str, Any], prices: Prices) -> tuple[Document, dict[str, Any]]:
    """Returns the costs of the servers as a document and as plain data."""
    from offpath.profiling.experiments import cost, cost_report

    demand = read_demand(options)
    shape = cost.LogShape(
        records_per_object=options["records_per_object"], **pick(options, LOG_OPTIONS)
    )
    rates, warnings = read_rates(options, prices)
    if not rates:
        raise WrongOption(
            "no server's rate: expected --rate-per-instance NAME=RATE, or --result FILE"
        )
    costs = cost.cost_all(
        rates,
        read_hourly_usd(options, prices),
        demand,
        shape,
        prices,
        read_paid(options, rates),
    )
    month = cost_report.Month(costs, demand, prices)
    return (
        cost_report.document_of(month, warnings),
        cost_report.as_json(month, warnings),
    )


def pick(options: Mapping[str, Any], table: tuple[tuple[str, float, str], ...]) -> dict[str, Any]:
    """Returns the options of a table, by their names in Python."""
    names = [name.replace("-", "_") for name, _, _ in table]
    return {name: options[name] for name in names}


def read_demand(options: Mapping[str, Any]) -> Demand:
    """Returns the load to serve."""
    from offpath.profiling.experiments.cost import Demand

    per_s, per_minute = options["peak_per_s"], options["peak_per_minute"]
    if (per_s is None) == (per_minute is None):
        raise WrongOption("no peak rate: expected --peak-per-s or --peak-per-minute, one of them")
    peak_per_s = per_minute / 60 if per_s is None else per_s
    mean_per_s = options["mean_per_s"]
    return Demand(
        peak_per_s,
        peak_per_s if mean_per_s is None else mean_per_s,
        **pick(options, DEMAND_OPTIONS),
    )


def read_rates(options: Mapping[str, Any], prices: Prices) -> tuple[dict[str, float], list[str]]:
    """Returns the rates by server, of the result file and given, and the doubts about them."""
    rates: dict[str, float] = {}
    doubts: list[str] = []
    path: Path | None = options["result_path"]
    if path is not None:
        from offpath.profiling.experiments import cost_report

        measured = cost_report.read_rates(path, options["workload"])
        rates, doubts = measured.rates, measured.doubts
        mixture = prices.find_mixture(measured.on_gpu, options["instance"])
        if mixture is not None:
            if not options["allow_mixed"]:
                raise WrongOption(f"{mixture}; measure on that instance, or pass --allow-mixed")
            doubts = [mixture, *doubts]
    elif options["workload"]:
        raise WrongOption("--workload chooses from a --result FILE: name the file too")
    return rates | read_pairs("--rate-per-instance", options["rates"]), doubts


def read_paid(options: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, int]:
    """Returns the instances on the user's bill by server."""
    paid = read_pairs("--paid-instances", options["paid"])
    for name, count in paid.items():
        if not (count.is_integer() and count >= 1):
            raise WrongOption(f"--paid-instances {name}={count:g}: expected a whole number from 1")
        if name not in rates:
            raise WrongOption(
                f"--paid-instances names {name!r}: expected one of {', '.join(rates)}"
            )
    return {name: int(count) for name, count in paid.items()}


def read_hourly_usd(options: Mapping[str, Any], prices: Prices) -> float:
    """Returns the dollars per hour of one instance."""
    price, instance = options["hourly_price"], options["instance"]
    if (price is None) == (instance is None):
        raise WrongOption(
            "no hourly price: expected --hourly-price DOLLARS or --instance TYPE, one of them;"
            f" known types: {', '.join(prices.instances)}"
        )
    return float(price) if price is not None else prices.hourly(instance)


def read_pairs(option: str, texts: tuple[str, ...]) -> dict[str, float]:
    """Reads the values of a NAME=NUMBER option."""
    pairs: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            name = ""
        if not name or name in pairs:
            raise WrongOption(f"{option} {text!r}: expected NAME=NUMBER, each name once")
        pairs[name] = number
    return pairs
