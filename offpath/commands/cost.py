"""`offpath cost`: what a month of serving costs, from measured rates or from numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.experiments.cost import Demand, LogShape
    from offpath.profiling.experiments.prices import Prices


@click.command("cost")
@click.option(
    "--result",
    "result_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Result file of `offpath bench`: its servers' median rates.",
)
@click.option("--workload", help="Which workload of --result, where it has several.")
@click.option(
    "--rate-per-instance",
    "rates",
    multiple=True,
    metavar="NAME=RATE",
    help="Requests a second that one instance answers; repeatable.",
)
@click.option("--peak-per-s", type=float, help="Highest rate to serve, a second.")
@click.option("--peak-per-minute", type=float, help="The same, a minute.")
@click.option(
    "--mean-per-s", type=float, help="Mean rate, for the log.  [default: the peak]"
)
@click.option(
    "--head-room",
    type=float,
    default=0.3,
    show_default=True,
    help="Share of an instance's rate kept free at the peak.",
)
@click.option(
    "--min-instances",
    type=int,
    default=1,
    show_default=True,
    help="Never fewer; 2: one may fail.",
)
@click.option(
    "--paid-instances",
    "paid",
    multiple=True,
    metavar="NAME=N",
    help="Instances on your bill, where they are not what is needed; repeatable.",
)
@click.option("--hourly-price", type=float, help="Dollars an hour of one instance.")
@click.option(
    "--instance", help="Instance type of the price file instead, e.g. g4dn.xlarge."
)
@click.option(
    "--hours", type=float, default=730, show_default=True, help="Hours a month."
)
@click.option(
    "--record-bytes",
    type=float,
    default=700,
    show_default=True,
    help="Size of a record of the prediction log.",
)
@click.option("--retention-days", type=float, default=30, show_default=True)
@click.option(
    "--puts-per-record",
    type=float,
    default=1,
    show_default=True,
    help="S3 requests a prediction, put by put.",
)
@click.option(
    "--records-per-object",
    type=float,
    help="Of batched objects.  [default: what the spool's 8 MiB and 60 s make of the mean rate]",
)
@click.option(
    "--compressed-share",
    type=float,
    default=0.25,
    show_default=True,
    help="Size of a record in a batched object over its own.",
)
@click.option(
    "--workers",
    type=int,
    default=2,
    show_default=True,
    help="Workers of an instance; each fills its own objects.",
)
@click.option(
    "--prices",
    "prices_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Your price file instead of ours (profiling/experiments/prices.yaml, us-east-1).",
)
@click.option(
    "--example",
    type=click.Choice(["published"]),
    help="The published $803 against $384, from its inputs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**options: Any) -> None:
    """Instances, $/month and $/million predictions per server, log put by put and batched.

    \b
    Examples:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
      offpath cost --rate-per-instance a=47 --rate-per-instance b=183 --peak-per-minute 120 \\
        --hourly-price 0.526
      offpath cost --example published
    """
    from offpath.profiling.experiments.prices import PRICES_FILE, load_prices

    prices = load_prices(options["prices_path"] or PRICES_FILE)
    if options["example"]:
        show_published(prices, options["as_json"])
    else:
        show_costs(options, prices)


def show_costs(options: dict[str, Any], prices: Prices) -> None:
    """Computes and prints what the options ask for."""
    from rich.console import Console

    from offpath.profiling.experiments import cost_report
    from offpath.profiling.experiments.cost import cost_all

    demand = read_demand(options)
    costs = cost_all(
        read_rates(options),
        read_hourly_usd(options, prices),
        demand,
        read_shape(options),
        prices,
        {
            name: int(check_whole(name, count))
            for name, count in read_pairs("--paid-instances", options["paid"]).items()
        },
    )
    if options["as_json"]:
        click.echo(json.dumps(cost_report.as_json(costs, demand), indent=1))
        return
    console = Console()
    cost_report.print_costs(costs, demand, console)
    console.print(
        f"list prices of {prices.region}, {prices.as_of}: {', '.join(prices.sources.values())}",
        style="dim",
        highlight=False,
    )


def show_published(prices: Prices, as_json: bool) -> None:
    """The published example."""
    from rich.console import Console

    from offpath.profiling.experiments import cost_published, cost_report

    costs = cost_published.published_costs(prices)
    demand = cost_published.published_demand()
    totals = cost_published.published_totals(costs)
    inputs = cost_published.published_inputs(prices)
    if as_json:
        content = cost_report.as_json(costs, demand) | {
            "source": cost_published.SOURCE,
            "inputs": [[one.origin, one.text] for one in inputs],
            "computed_usd": totals,
            "published_usd": cost_published.PUBLISHED_USD,
        }
        click.echo(json.dumps(content, indent=1))
        return
    console = Console()
    cost_report.print_published(inputs, totals, console)
    cost_report.print_costs(costs, demand, console)


def read_rates(options: dict[str, Any]) -> dict[str, float]:
    """Rates by server: from the result file, then those given by hand."""
    rates: dict[str, float] = {}
    if options["result_path"]:
        from offpath.profiling.experiments.cost_rates import rates_of_result

        rates.update(rates_of_result(options["result_path"], options["workload"]))
    elif options["workload"]:
        raise ExpectedError(
            "--workload chooses from a --result FILE: name the file too"
        )
    rates.update(read_pairs("--rate-per-instance", options["rates"]))
    return rates


def read_demand(options: dict[str, Any]) -> Demand:
    """Peak and mean."""
    from offpath.profiling.experiments.cost import Demand

    per_s, per_minute = options["peak_per_s"], options["peak_per_minute"]
    if (per_s is None) == (per_minute is None):
        raise ExpectedError(
            "no peak rate: expected --peak-per-s or --peak-per-minute, one of them"
        )
    peak = per_s if per_s is not None else per_minute / 60
    mean = options["mean_per_s"]
    return Demand(
        peak_per_s=peak,
        mean_per_s=peak if mean is None else mean,
        head_room=options["head_room"],
        hours=options["hours"],
        min_instances=options["min_instances"],
    )


def read_shape(options: dict[str, Any]) -> LogShape:
    """The log's shape."""
    from offpath.profiling.experiments.cost import LogShape

    names = (
        *("record_bytes", "retention_days", "puts_per_record"),
        *("records_per_object", "compressed_share", "workers"),
    )
    return LogShape(**{name: options[name] for name in names})


def read_hourly_usd(options: dict[str, Any], prices: Prices) -> float:
    """Dollars an hour of one instance."""
    price, instance = options["hourly_price"], options["instance"]
    if (price is None) == (instance is None):
        raise ExpectedError(
            "no hourly price: expected --hourly-price DOLLARS or --instance TYPE, one of them;"
            f" known types: {', '.join(prices.instances)}"
        )
    return float(price) if price is not None else prices.hourly(instance)


def read_pairs(option: str, texts: tuple[str, ...]) -> dict[str, float]:
    """NAME=NUMBER options."""
    pairs: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            name = ""
        if not name or name in pairs:
            raise ExpectedError(
                f"{option} {text!r}: expected NAME=NUMBER, each name once"
            )
        pairs[name] = number
    return pairs


def check_whole(name: str, count: float) -> float:
    """Raises ExpectedError unless a count is a whole number from 1."""
    if not (count.is_integer() and count >= 1):
        raise ExpectedError(
            f"--paid-instances {name}={count:g}: expected a whole number from 1"
        )
    return count
