"""The published bill ($803 a month on TorchServe, $384 on Triton), computed from its inputs.

Each input says whether it was published, is a list price, or is our assumption. Of the publication
we could read the opening, which has the rates, the instances and the totals, not a breakdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from offpath.profiling.experiments.cost import Demand, LogShape, ServerCost, cost_all
from offpath.profiling.experiments.cost_report import as_json, document_of
from offpath.profiling.experiments.prices import Prices
from offpath.profiling.report.document import Document, Section, Table

SOURCE = (
    "https://tildalice.io/triton-torchserve-io-bottleneck, updated 12 February 2026"
)
TORCHSERVE, TRITON = "torchserve", "triton"
# What the computed totals are held against; nothing is computed from these.
PUBLISHED_USD = {TORCHSERVE: 803, TRITON: 384}
INSTANCE = "g4dn.xlarge"
PEAK_PER_MINUTE = 120
DEMAND = Demand(peak_per_s=PEAK_PER_MINUTE / 60, mean_per_s=PEAK_PER_MINUTE / 60)
RATES = {TORCHSERVE: 47.0, TRITON: 183.0}
PAID = {TORCHSERVE: 2, TRITON: 1}
# The publication does not itemise what is left of $803 after two instances, $35. It says that each
# request was logged to S3: four requests to S3 for three predictions come to it, one each to $26.
PUTS_PER_RECORD = 4 / 3


def compute_costs(
    prices: Prices, puts_per_record: float = PUTS_PER_RECORD
) -> list[ServerCost]:
    """Both servers' months."""
    shape = LogShape(puts_per_record=puts_per_record)
    return cost_all(RATES, prices.hourly(INSTANCE), DEMAND, shape, prices, PAID)


def compute_totals(costs: Sequence[ServerCost]) -> dict[str, float]:
    """The month's total as each was run: TorchServe put by put, Triton without."""
    before, after = costs
    return {
        TORCHSERVE: before.total_usd(before.log_each),
        TRITON: after.total_usd(after.log_batched),
    }


def list_inputs(prices: Prices) -> list[tuple[str, str]]:
    """Where each input comes from: `published`, `quoted`, `list price` or `assumed`; and what."""
    plain_usd = compute_totals(compute_costs(prices, puts_per_record=1))[TORCHSERVE]
    return [
        ("published", "TorchServe 47 req/s on each of two T4 instances"),
        ("published", "Triton 183 req/s on one T4 instance"),
        (
            "quoted",
            f"{PEAK_PER_MINUTE} requests a minute (of the same publication, at second hand)",
        ),
        (
            "list price",
            f"{INSTANCE} {prices.hourly(INSTANCE)} $/h in {prices.region}, 730 h",
        ),
        ("list price", f"S3 {prices.put_per_1000} $ per 1,000 puts"),
        (
            "assumed",
            "T4 instances are g4dn.xlarge: one is the published $384 to the dollar",
        ),
        (
            "assumed",
            "the same rate all month; records of 700 bytes, kept for 30 days",
        ),
        (
            "assumed",
            f"{PUTS_PER_RECORD:.2f} S3 requests a prediction before: fitted to the $35 that the"
            f" publication does not itemise; with one each the bill is ${plain_usd:.0f}",
        ),
        (
            "assumed",
            "after: the log in batched objects, or none (the same to the dollar)",
        ),
    ]


def published_document(prices: Prices) -> Document:
    """The inputs, computed against published, and the costs as of any other question."""
    costs = compute_costs(prices)
    totals = [
        [name, f"{usd:,.2f}", str(PUBLISHED_USD[name])]
        for name, usd in compute_totals(costs).items()
    ]
    section = Section(
        f"The published bill ({SOURCE})",
        [
            Table("", ["origin", "input"], list_inputs(prices), words=2),
            Table("$ a month", ["", "computed", "published"], totals),
        ],
    )
    document = document_of(costs, DEMAND, prices)
    return replace(document, sections=[section, *document.sections])


def published_json(prices: Prices) -> dict[str, Any]:
    """All of it as plain data."""
    costs = compute_costs(prices)
    return as_json(costs, DEMAND) | {
        "source": SOURCE,
        "inputs": [list(one) for one in list_inputs(prices)],
        "computed_usd": compute_totals(costs),
        "published_usd": PUBLISHED_USD,
    }
