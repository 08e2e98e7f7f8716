"""`offpath cost`: what a month of serving costs, from measured rates or from numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.showing import FILE
from offpath.handler.errors import WrongOption

if TYPE_CHECKING:
    from offpath.profiling.experiments.cost import Demand
    from offpath.profiling.experiments.prices import Prices
    from offpath.profiling.report.document import Document

# Name, default and help of numbers that are passed on as they are.
DEMAND_OPTIONS = (
    ("head-room", 0.3, "Share of an instance's rate kept free at the peak."),
    ("hours", 730.0, "Hours a month."),
    ("min-instances", 1, "Never fewer; 2: one may fail."),
)
LOG_OPTIONS = (
    ("record-bytes", 700.0, "Size of a record of the prediction log."),
    ("retention-days", 30.0, "How long records stay in S3; 0: storage is not counted."),
    ("puts-per-record", 1.0, "S3 requests a prediction, put by put."),
    ("compressed-share", 0.25, "Size of a record in a batched object over its own."),
    ("workers", 2, "Workers of an instance; each fills its own objects."),
)

# Of one picture, for the question of two kinds of hosts.
TIER_OPTIONS = (
    ("gpu-rate", "Pictures a second that one GPU answers when nothing else limits it."),
    ("cpu-ms", "CPU of a picture on a host that does everything, ms of a vCPU."),
    ("decode-cpu-ms", "The same on a host that only decodes."),
    ("model-cpu-ms", "The same on the host with the GPU when others decode."),
)


def tier_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of two kinds of hosts."""
    for name, said in reversed(TIER_OPTIONS):
        command = click.option(f"--{name}", type=float, help=said)(command)
    return click.option(
        "--decode-instance",
        metavar="TYPE",
        help="Asks for two kinds of hosts: --instance with a GPU alone, or with hosts of this type"
        " that decode (offpath export ray --decode-replicas); needs the four options below.",
    )(command)


def number_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options above."""
    for name, default, said in reversed(DEMAND_OPTIONS + LOG_OPTIONS):
        option = click.option(
            f"--{name}", default=default, show_default=True, help=said
        )
        command = option(command)
    return command


@click.command("cost")
@click.option(
    "--result",
    "result_path",
    type=FILE,
    help="Saved run of `offpath bench` or `tune`: its median rates.",
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
    "--allow-mixed",
    is_flag=True,
    help="Price rates measured on a CPU as a GPU instance's, or the other way round; it is said.",
)
@number_options
@tier_options
@click.option(
    "--records-per-object",
    type=float,
    help="Of batched objects.  [default: what the spool's 8 MiB and 60 s make of the mean rate]",
)
@click.option(
    "--prices",
    "prices_path",
    type=FILE,
    help="Your price file instead of ours (profiling/experiments/prices.yaml, us-east-1).",
)
@click.option(
    "--example",
    type=click.Choice(["published"]),
    help="The published $803 against $384, from its inputs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Tables for a README or an issue.")
def command(as_json: bool, markdown: bool, **options: Any) -> None:
    """Instances, $/month and $/million predictions per server, log put by put and batched.

    \b
    Examples:
      offpath cost --result result.json --workload photos-55k --peak-per-s 500 --instance c7i.large
      offpath cost --rate-per-instance a=47 --rate-per-instance b=183 --peak-per-minute 120 \\
        --hourly-price 0.526
      offpath cost --example published
      offpath cost --instance g4dn.xlarge --decode-instance c7i.xlarge --peak-per-s 2000 \\
        --gpu-rate 1500 --cpu-ms 21 --decode-cpu-ms 22 --model-cpu-ms 2
    """
    from rich.console import Console

    from offpath.profiling.experiments import cost_published
    from offpath.profiling.experiments.prices import PRICES_FILE, load_prices
    from offpath.profiling.report.markdown import format_markdown
    from offpath.profiling.report.terminal import print_document

    prices = load_prices(options["prices_path"] or PRICES_FILE)
    if options["example"]:
        document = cost_published.published_document(prices)
        content = cost_published.published_json(prices)
    elif options["decode_instance"]:
        document, content = compute_tiers(options, prices)
    else:
        document, content = compute(options, prices)
    if as_json:
        click.echo(json.dumps(content, indent=1))
    elif markdown:
        click.echo(format_markdown(document), nl=False)
    else:
        print_document(document, Console())


def compute(
    options: Mapping[str, Any], prices: Prices
) -> tuple[Document, dict[str, Any]]:
    """What the options ask for, shown and as plain data."""
    from offpath.profiling.experiments import cost, cost_report

    demand = read_demand(options)
    shape = cost.LogShape(
        records_per_object=options["records_per_object"], **pick(options, LOG_OPTIONS)
    )
    paid = read_pairs("--paid-instances", options["paid"])
    for name, count in paid.items():
        if not (count.is_integer() and count >= 1):
            raise WrongOption(
                f"--paid-instances {name}={count:g}: expected a whole number from 1"
            )
    rates, mixture = read_rates(options, prices)
    costs = cost.cost_all(
        rates,
        read_hourly_usd(options, prices),
        demand,
        shape,
        prices,
        {name: int(count) for name, count in paid.items()},
    )
    warnings = [] if mixture is None else [mixture]
    document = cost_report.document_of(costs, demand, prices, warnings)
    return document, cost_report.as_json(costs, demand, warnings)


def compute_tiers(
    options: Mapping[str, Any], prices: Prices
) -> tuple[Document, dict[str, Any]]:
    """GPU hosts alone, or with hosts that decode for them."""
    from offpath.profiling.experiments import cost_tiers

    given = {name: options[name.replace("-", "_")] for name, _ in TIER_OPTIONS}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if options["instance"] is None:
        missing.insert(0, "--instance")
    if missing:
        raise WrongOption(f"--decode-instance needs {', '.join(missing)} too")
    picture = cost_tiers.Picture(*given.values())
    demand = read_demand(options)
    fleets = cost_tiers.compute_fleets(
        picture, options["instance"], options["decode_instance"], demand, prices
    )
    return (
        cost_tiers.document_of(fleets, demand, prices),
        cost_tiers.as_json(fleets, picture, demand),
    )


def pick(
    options: Mapping[str, Any], table: tuple[tuple[str, float, str], ...]
) -> dict[str, Any]:
    """The options of a table, by their names in Python."""
    names = [name.replace("-", "_") for name, _, _ in table]
    return {name: options[name] for name in names}


def read_demand(options: Mapping[str, Any]) -> Demand:
    """What has to be served."""
    from offpath.profiling.experiments.cost import Demand

    peak_per_s, mean_per_s = read_peak(options), options["mean_per_s"]
    return Demand(
        peak_per_s,
        peak_per_s if mean_per_s is None else mean_per_s,
        **pick(options, DEMAND_OPTIONS),
    )


def read_rates(
    options: Mapping[str, Any], prices: Prices
) -> tuple[dict[str, float], str | None]:
    """Rates by server: from the result file, then those given by hand; and a doubt about them."""
    rates: dict[str, float] = {}
    mixture: str | None = None
    path: Path | None = options["result_path"]
    if path is not None:
        # Imported here: rates that are given need no polars.
        from offpath.profiling.experiments import cost_rates

        rates, on_gpu = cost_rates.read_rates(path, options["workload"])
        mixture = prices.find_mixture(on_gpu, options["instance"])
        if mixture is not None and not options["allow_mixed"]:
            raise WrongOption(
                f"{mixture}; measure on that instance, or say --allow-mixed"
            )
    elif options["workload"]:
        raise WrongOption("--workload chooses from a --result FILE: name the file too")
    return rates | read_pairs("--rate-per-instance", options["rates"]), mixture


def read_peak(options: Mapping[str, Any]) -> float:
    """Requests a second."""
    per_s: float | None = options["peak_per_s"]
    per_minute: float | None = options["peak_per_minute"]
    if per_s is not None and per_minute is None:
        return per_s
    if per_minute is not None and per_s is None:
        return per_minute / 60
    raise WrongOption(
        "no peak rate: expected --peak-per-s or --peak-per-minute, one of them"
    )


def read_hourly_usd(options: Mapping[str, Any], prices: Prices) -> float:
    """Dollars an hour of one instance."""
    price, instance = options["hourly_price"], options["instance"]
    if (price is None) == (instance is None):
        raise WrongOption(
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
            raise WrongOption(
                f"{option} {text!r}: expected NAME=NUMBER, each name once"
            )
        pairs[name] = number
    return pairs
