"""Reports of `offpath cost`: measured rates to price, the month's costs, and the published bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from offpath.handler.errors import WrongOption
from offpath.profiling.experiments.cost import (
    Demand,
    LogCost,
    LogShape,
    Prices,
    ServerCost,
    cost_all,
)
from offpath.profiling.report.declared import (
    Column,
    Part,
    Report,
    TableSpec,
    make_document,
)
from offpath.profiling.report.document import Document

# Prefix of the metrics of a window on a machine with a GPU, see `load.window`.
GPU_ROWS = "gpu."


@dataclass(frozen=True)
class MeasuredRates:
    """Rates of a saved run, in requests per second of one instance.

    Attributes:
        on_gpu: the machine had a GPU.
        doubts: the doubts about the run's figures.
    """

    rates: dict[str, float]
    on_gpu: bool
    doubts: list[str]


def read_rates(path: Path, workload: str | None) -> MeasuredRates:
    """Reads a saved run's median rates by server on one workload, the best of several cells.

    A server that answered nothing has no price.

    Args:
        workload: None for the only one of the run.

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
    rates = {
        name: max(
            (summary.value(name, cell, "rate") or 0.0 for cell in summary.cells()),
            default=0.0,
        )
        for name in run.variants
        if not is_limit(name)
    }
    rates = {server: rate for server, rate in rates.items() if rate}
    if not rates:
        raise WrongOption(f"{str(path)!r} has no good reply on {workload!r}: finish a round first")
    on_gpu = any(row.metric.startswith(GPU_ROWS) for row in run.rows)
    return MeasuredRates(rates, on_gpu, find_doubts(run))


@dataclass(frozen=True)
class Month:
    """The month of several servers under one demand."""

    costs: Sequence[ServerCost]
    demand: Demand
    prices: Prices

    def list_ways(self) -> list[tuple[ServerCost, str, LogCost]]:
        """Lists each server with each way of keeping the log."""
        return [
            (cost, way, log)
            for cost in self.costs
            for way, log in (
                ("put by put", cost.log_each),
                ("batched", cost.log_batched),
            )
        ]


def describe_demand(demand: Demand) -> str:
    """Returns peak, head-room and hours in words."""
    return (
        f"peak {demand.peak_per_s:g} requests per second, head-room"
        f" {100 * demand.head_room:.0f} %, {demand.hours:g} hours per month"
    )


def describe_prices(prices: Prices) -> str:
    """Returns region, date and pages of the prices."""
    sources = ", ".join(prices.sources.values())
    return f"list prices of {prices.region}, {prices.as_of}: {sources}"


INSTANCES: TableSpec[Month, ServerCost] = TableSpec(
    lambda month: describe_demand(month.demand),
    lambda month: month.costs,
    (
        Column("", lambda cost: cost.name),
        Column("req/s each", lambda cost: f"{cost.rate_per_s:,.1f}"),
        Column("needed", lambda cost: str(cost.needed)),
        Column("paid", lambda cost: str(cost.paid)),
        Column("used at peak %", lambda cost: f"{100 * cost.peak_share:.0f}"),
        Column("$/month", lambda cost: f"{cost.compute_usd:,.2f}"),
    ),
)
TOTALS: TableSpec[Month, tuple[ServerCost, str, LogCost]] = TableSpec(
    lambda month: f"{month.demand.predictions / 1e6:,.2f} million predictions per month",
    Month.list_ways,
    (
        Column("", lambda row: row[0].name),
        Column("log to S3", lambda row: row[1]),
        Column("log $", lambda row: f"{row[2].usd:,.2f}"),
        Column("total $", lambda row: f"{row[0].total_usd(row[2]):,.2f}"),
        Column("$/million", lambda row: f"{row[0].per_million_usd(row[2]):,.2f}"),
    ),
    words=2,
)
MONTH: Report[Month] = Report(
    "Cost per month",
    (
        Part(
            "Instances",
            (INSTANCES,),
            lambda month: "\n".join(draw_conclusions(month.costs, month.demand)),
        ),
        Part(
            "With the prediction log",
            (TOTALS,),
            lambda month: describe_prices(month.prices),
        ),
    ),
)


def document_of(month: Month, warnings: Sequence[str] = ()) -> Document:
    """Returns instances, dollars and conclusions; the tables fit 80 columns."""
    return make_document(MONTH, {"": month}, warnings)


def as_json(month: Month, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Returns everything as plain data, dollars unrounded."""
    costs, demand = month.costs, month.demand
    return {
        "demand": asdict(demand) | {"predictions": demand.predictions},
        "servers": [
            asdict(cost)
            | {
                "total_each_usd": cost.total_usd(cost.log_each),
                "total_batched_usd": cost.total_usd(cost.log_batched),
                "per_million_each_usd": cost.per_million_usd(cost.log_each),
                "per_million_batched_usd": cost.per_million_usd(cost.log_batched),
            }
            for cost in costs
        ],
        "conclusions": draw_conclusions(costs, demand),
        "warnings": list(warnings),
    }


def draw_conclusions(costs: Sequence[ServerCost], demand: Demand) -> list[str]:
    """Returns what follows from the figures, in words."""
    lines = [describe_idle(cost, demand) for cost in costs if cost.paid > cost.needed]
    if len(costs) > 1 and all(cost.needed == 1 for cost in costs):
        lines.append(
            f"at {demand.peak_per_s:g} requests per second every server needs a single instance:"
            " a faster server does not lower this bill, a smaller instance might"
        )
    return lines


def describe_idle(cost: ServerCost, demand: Demand) -> str:
    """Describes the instances that are paid for but not needed."""
    few = "a single instance is" if cost.needed == 1 else f"{cost.needed} instances are"
    idle_usd = (cost.paid - cost.needed) * cost.compute_usd / cost.paid
    return (
        f"{cost.name}: {few} enough for {60 * demand.peak_per_s:g} requests per minute"
        f" ({demand.peak_per_s:g} per second; one instance answers {cost.rate_per_s:g}); of the"
        f" {cost.paid} on the bill the others are a spare for ${idle_usd:,.0f} per month"
    )


# The published bill ($803 per month on TorchServe, $384 on Triton), computed from its inputs. We
# could read the opening of the publication, which has the rates, the instances and the totals, but
# no breakdown. Each input is marked as published, a list price, or our assumption.
SOURCE = "https://tildalice.io/triton-torchserve-io-bottleneck, updated 12 February 2026"
TORCHSERVE, TRITON = "torchserve", "triton"
# The computed totals are compared with these; nothing is computed from them.
PUBLISHED_USD = {TORCHSERVE: 803, TRITON: 384}
PUBLISHED_INSTANCE = "g4dn.xlarge"
PEAK_PER_MINUTE = 120
PUBLISHED_DEMAND = Demand(peak_per_s=PEAK_PER_MINUTE / 60, mean_per_s=PEAK_PER_MINUTE / 60)
PUBLISHED_RATES = {TORCHSERVE: 47.0, TRITON: 183.0}
PUBLISHED_PAID = {TORCHSERVE: 2, TRITON: 1}
# After two instances, $35 of the $803 remain, which the publication does not itemise. It says that
# each request was logged to S3. Four S3 requests for three predictions cost $35, one each $26.
PUTS_PER_RECORD = 4 / 3


@dataclass(frozen=True)
class PublishedBill:
    """The published bill as it is computed with some prices."""

    prices: Prices
    puts_per_record: float = PUTS_PER_RECORD

    @property
    def month(self) -> Month:
        """Both servers."""
        costs = cost_all(
            PUBLISHED_RATES,
            self.prices.hourly(PUBLISHED_INSTANCE),
            PUBLISHED_DEMAND,
            LogShape(puts_per_record=self.puts_per_record),
            self.prices,
            PUBLISHED_PAID,
        )
        return Month(costs, PUBLISHED_DEMAND, self.prices)

    def compute_totals(self) -> dict[str, float]:
        """Returns the totals of TorchServe with one put per record, and of Triton without."""
        before, after = self.month.costs
        return {
            TORCHSERVE: before.total_usd(before.log_each),
            TRITON: after.total_usd(after.log_batched),
        }

    def list_inputs(self) -> list[tuple[str, str]]:
        """Lists the origin of each input (published, quoted, list price, assumed) and its value."""
        one_put = replace(self, puts_per_record=1)
        one_put_usd = one_put.compute_totals()[TORCHSERVE]
        hourly = self.prices.hourly(PUBLISHED_INSTANCE)
        return [
            ("published", "TorchServe 47 req/s on each of two T4 instances"),
            ("published", "Triton 183 req/s on one T4 instance"),
            (
                "quoted",
                f"{PEAK_PER_MINUTE} requests per minute (the same publication, at second hand)",
            ),
            (
                "list price",
                f"{PUBLISHED_INSTANCE} {hourly} $/h in {self.prices.region}, 730 h",
            ),
            ("list price", f"S3 {self.prices.put_per_1000} $ per 1,000 puts"),
            (
                "assumed",
                "T4 instances are g4dn.xlarge: one costs the published $384 to the dollar",
            ),
            (
                "assumed",
                "the same rate all month; records of 700 bytes, kept for 30 days",
            ),
            (
                "assumed",
                f"{PUTS_PER_RECORD:.2f} S3 requests per prediction before: fitted to the $35 that"
                " the publication does not itemise; with one each the bill is"
                f" ${one_put_usd:.0f}",
            ),
            (
                "assumed",
                "after: the log in batched objects, or none (the same to the dollar)",
            ),
        ]


INPUTS: TableSpec[PublishedBill, tuple[str, str]] = TableSpec(
    "",
    PublishedBill.list_inputs,
    (Column("origin", lambda row: row[0]), Column("input", lambda row: row[1])),
    words=2,
)
COMPUTED: TableSpec[PublishedBill, tuple[str, float]] = TableSpec(
    "$ per month",
    lambda bill: bill.compute_totals().items(),
    (
        Column("", lambda row: row[0]),
        Column("computed", lambda row: f"{row[1]:,.2f}"),
        Column("published", lambda row: str(PUBLISHED_USD[row[0]])),
    ),
)
PUBLISHED: Report[PublishedBill] = Report(
    MONTH.title, (Part(f"The published bill ({SOURCE})", (INPUTS, COMPUTED)),)
)


def published_document(prices: Prices) -> Document:
    """Returns the inputs, computed against published totals, and the costs in full."""
    bill = PublishedBill(prices)
    document = make_document(PUBLISHED, {"": bill})
    costs = document_of(bill.month)
    return replace(document, sections=[*document.sections, *costs.sections])


def published_json(prices: Prices) -> dict[str, Any]:
    """Returns the published bill as plain data."""
    bill = PublishedBill(prices)
    return as_json(bill.month) | {
        "source": SOURCE,
        "inputs": [list(one) for one in bill.list_inputs()],
        "computed_usd": bill.compute_totals(),
        "published_usd": PUBLISHED_USD,
    }
