"""`offpath cost`: computes a month's cost of serving, from measured rates or from numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offpath.commands.serve_options import FILE
from offpath.errors import WrongOption

if TYPE_CHECKING:
    from offpath.profiling.experiments.cost import Prices
    from offpath.profiling.experiments.cost_report import Month


@click.command("cost")
@click.option(
    "--result",
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
@click.option(
    "--mean-per-s",
    type=float,
    help="Mean rate in requests per second, for the log.  [default: the peak]",
)
@click.option(
    "--head-room",
    default=0.3,
    show_default=True,
    help="Share of an instance's rate that stays free at the peak.",
)
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
def command(**options: Any) -> None:
    """Compute instances, $/month and $/million predictions of each server.

    The prediction log is priced twice: with one S3 put per record, and in batched objects.

    \b
    Examples:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
      offpath cost --rate-per-instance a=47 --rate-per-instance b=183 --peak-per-s 2 \\
        --hourly-price 0.526
      offpath cost --example published
    """
    from rich.console import Console

    from offpath.profiling.experiments import cost_report
    from offpath.profiling.experiments.cost import load_prices
    from offpath.profiling.report.terminal import print_document

    prices = load_prices()
    if options["example"]:
        document = cost_report.published_document(prices)
    else:
        document = cost_report.document_of(*cost_month(options, prices))
    print_document(document, Console())


def cost_month(options: dict[str, Any], prices: Prices) -> tuple[Month, list[str]]:
    """Returns the month of each server, and the doubts about the measured rates."""
    from offpath.profiling.experiments.cost import Demand, cost_server
    from offpath.profiling.experiments.cost_report import Month

    peak, mean = options["peak_per_s"], options["mean_per_s"]
    if peak is None:
        raise WrongOption("no peak rate: expected --peak-per-s")
    demand = Demand(peak, peak if mean is None else mean, options["head_room"])
    rates, doubts = read_rates(options, prices)
    if not rates:
        raise WrongOption(
            "no server's rate: expected --rate-per-instance NAME=RATE, or --result FILE"
        )
    hourly = read_hourly_usd(options, prices)
    costs = [cost_server(name, rate, hourly, demand, prices) for name, rate in rates.items()]
    return Month(costs, demand, prices), doubts


def read_rates(options: dict[str, Any], prices: Prices) -> tuple[dict[str, float], list[str]]:
    """Returns the rates by server, of the result file and given, and the doubts about them."""
    rates: dict[str, float] = {}
    doubts: list[str] = []
    if options["result"] is not None:
        from offpath.profiling.experiments import cost_report

        rates, on_gpu, doubts = cost_report.read_rates(options["result"], options["workload"])
        mixture = prices.find_mixture(on_gpu, options["instance"])
        if mixture is not None:
            raise WrongOption(
                f"{mixture}; measure on that instance, or give your estimate with"
                " --rate-per-instance NAME=RATE"
            )
    elif options["workload"]:
        raise WrongOption("--workload chooses from a --result FILE: name the file too")
    return rates | read_pairs(options["rates"]), doubts


def read_hourly_usd(options: dict[str, Any], prices: Prices) -> float:
    """Returns the dollars per hour of one instance."""
    price, instance = options["hourly_price"], options["instance"]
    if (price is None) == (instance is None):
        raise WrongOption(
            "no hourly price: expected --hourly-price DOLLARS or --instance TYPE, one of them;"
            f" known types: {', '.join(prices.instances)}"
        )
    return float(price) if price is not None else prices.hourly(instance)


def read_pairs(texts: tuple[str, ...]) -> dict[str, float]:
    """Reads the values of --rate-per-instance."""
    pairs: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            name = ""
        if not name or name in pairs:
            raise WrongOption(f"--rate-per-instance {text!r}: expected NAME=NUMBER, each name once")
        pairs[name] = number
    return pairs
