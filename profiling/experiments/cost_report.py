"""Reports of `offpath cost`: measured rates to price, the month's costs, and the published bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from offpath.errors import WrongOption
from offpath.profiling.experiments.cost import Demand, Prices, ServerCost, cost_server
from offpath.profiling.report.document import Document, Section, format_table, join_blocks

TITLE = "Cost per month"
# Prefix of the metrics of a window on a machine with a GPU, see `load.window`.
GPU_ROWS = "gpu."


def read_rates(path: Path, workload: str | None) -> tuple[dict[str, float], bool, list[str]]:
    """Reads a saved run's median rates by server on one workload, the best of several cells.

    A server that answered nothing has no price.

    Args:
        workload: None for the only one of the run.

    Returns:
        requests per second of one instance, by server; True if the machine had a GPU; the doubts
        about the run's figures.

    Raises:
        WrongOption: no such file or workload, or no server answered.
    """
    # Imported here, because a question in numbers needs no polars.
    from offpath.profiling.core.doubts import find_doubts
    from offpath.profiling.core.limits import is_limit
    from offpath.profiling.core.run import load_run
    from offpath.profiling.core.statistics import Summary

    run = load_run(path)
    measured = list(run.workloads)
    if workload is None and len(measured) == 1:
        workload = measured[0]
    if workload not in measured:
        raise WrongOption(
            f"workload {workload!r} of {str(path)!r}: expected one of {', '.join(measured)}"
        )
    run = replace(run, rows=[row for row in run.rows if row.workload == workload])
    summary = Summary(run)
    cells = summary.cells()
    best = {
        name: max((summary.value(name, cell, "rate") or 0.0 for cell in cells), default=0.0)
        for name in run.variants
        if not is_limit(name)
    }
    rates = {server: rate for server, rate in best.items() if rate}
    if not rates:
        raise WrongOption(f"{str(path)!r} has no good reply on {workload!r}: finish a round first")
    on_gpu = any(row.metric.startswith(GPU_ROWS) for row in run.rows)
    return rates, on_gpu, find_doubts(run)


@dataclass(frozen=True)
class Month:
    costs: Sequence[ServerCost]
    demand: Demand
    prices: Prices


def document_of(month: Month, warnings: Sequence[str] = ()) -> Document:
    return Document(TITLE, show_month(month), warnings=warnings)


def show_month(month: Month) -> list[Section]:
    """Shows instances and dollars; the tables fit 80 columns."""
    demand = month.demand
    instances = [
        [
            cost.name,
            f"{cost.rate_per_s:,.1f}",
            str(cost.needed),
            str(cost.paid),
            f"{100 * cost.peak_share:.0f}",
            f"{cost.compute_usd:,.2f}",
        ]
        for cost in month.costs
    ]
    totals = [
        [
            cost.name,
            way,
            f"{log.usd:,.2f}",
            f"{cost.total_usd(log):,.2f}",
            f"{cost.per_million_usd(log):,.2f}",
        ]
        for cost in month.costs
        for way, log in (("put by put", cost.log_each), ("batched", cost.log_batched))
    ]
    return [
        Section(
            "Instances",
            format_table(
                ["", "req/s each", "needed", "paid", "used at peak %", "$/month"],
                instances,
                title=f"peak {demand.peak_per_s:g} requests per second, head-room"
                f" {100 * demand.head_room:.0f} %",
            ),
        ),
        Section(
            "With the prediction log",
            format_table(
                ["", "log to S3", "log $", "total $", "$/million"],
                totals,
                title=f"{demand.predictions / 1e6:,.2f} million predictions per month",
                words=2,
            ),
            note=month.prices.describe(),
        ),
    ]


# The published bill ($803 per month on TorchServe, $384 on Triton), computed from its inputs. We
# could read the opening of the publication, which has the rates, the instances and the totals, but
# no breakdown. Each input is marked as published, a list price, assumed or fitted.
SOURCE = "https://tildalice.io/triton-torchserve-io-bottleneck, updated 12 February 2026"
TORCHSERVE, TRITON = "torchserve", "triton"
# Rate, instances on the bill, and the published total, which nothing is computed from.
PUBLISHED = {TORCHSERVE: (47.0, 2, 803), TRITON: (183.0, 1, 384)}
PUBLISHED_INSTANCE = "g4dn.xlarge"
PEAK_PER_MINUTE = 120
# The only fitted number. After two instances, $35 of the $803 remain, which the publication does
# not itemise. It says that each request was logged to S3. Four S3 requests for three predictions
# cost $35, one each $26.
PUTS_PER_RECORD = 4 / 3


def cost_published(prices: Prices, puts_per_record: float = PUTS_PER_RECORD) -> Month:
    demand = Demand(peak_per_s=PEAK_PER_MINUTE / 60, mean_per_s=PEAK_PER_MINUTE / 60)
    hourly = prices.hourly(PUBLISHED_INSTANCE)
    costs = [
        cost_server(name, rate, hourly, demand, prices, paid, puts_per_record)
        for name, (rate, paid, _) in PUBLISHED.items()
    ]
    return Month(costs, demand, prices)


def total_published(month: Month) -> dict[str, float]:
    """Returns the totals of TorchServe with its puts, and of Triton without."""
    before, after = month.costs
    return {
        TORCHSERVE: before.total_usd(before.log_each),
        TRITON: after.total_usd(after.log_batched),
    }


def list_inputs(month: Month) -> list[tuple[str, str]]:
    prices = month.prices
    one_put_usd = total_published(cost_published(prices, puts_per_record=1))[TORCHSERVE]
    hourly = prices.hourly(PUBLISHED_INSTANCE)
    return [
        ("published", "TorchServe 47 req/s on each of two T4 instances"),
        ("published", "Triton 183 req/s on one T4 instance"),
        (
            "quoted",
            f"{PEAK_PER_MINUTE} requests per minute (the same publication, at second hand)",
        ),
        ("list price", f"{PUBLISHED_INSTANCE} {hourly} $/h in {prices.region}, 730 h"),
        ("list price", f"S3 {prices.put_per_1000} $ per 1,000 puts"),
        ("assumed", "T4 instances are g4dn.xlarge: one costs the published $384 to the dollar"),
        ("assumed", "the same rate all month; records of 700 bytes, kept for 30 days"),
        ("assumed", "after: the log in batched objects, or none (the same to the dollar)"),
        (
            "fitted",
            f"{PUTS_PER_RECORD:.2f} S3 requests per prediction before, to the $35 that the"
            f" publication does not itemise; with one each the bill is ${one_put_usd:.0f}",
        ),
    ]


def published_document(prices: Prices) -> Document:
    month = cost_published(prices)
    computed = [
        [name, f"{usd:,.2f}", str(PUBLISHED[name][2])]
        for name, usd in total_published(month).items()
    ]
    bill = join_blocks(
        format_table(["origin", "input"], list_inputs(month), words=2),
        format_table(["", "computed", "published"], computed, title="$ per month"),
    )
    return Document(TITLE, [Section(f"The published bill ({SOURCE})", bill), *show_month(month)])
