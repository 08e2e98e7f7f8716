"""The published bill ($803 a month on TorchServe, $384 on Triton), computed from its inputs.

Each input says whether it was published, is a list price, or is our assumption. Of the publication
we could read the opening, which has the rates, the instances and the totals, not a breakdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from offpath.profiling.experiments.cost import Demand, LogShape, ServerCost, cost_all
from offpath.profiling.experiments.prices import Prices

SOURCE = (
    "https://tildalice.io/triton-torchserve-io-bottleneck, updated 12 February 2026"
)
TORCHSERVE, TRITON = "torchserve", "triton"
# What the computed totals are held against; nothing is computed from these.
PUBLISHED_USD = {TORCHSERVE: 803, TRITON: 384}
INSTANCE = "g4dn.xlarge"
PEAK_PER_MINUTE = 120
RATES = {TORCHSERVE: 47.0, TRITON: 183.0}
PAID = {TORCHSERVE: 2, TRITON: 1}
# The publication does not itemise what is left of $803 after two instances, $35. It says that each
# request was logged to S3: four requests to S3 for three predictions come to it, one each to $26.
PUTS_PER_RECORD = 4 / 3


@dataclass(frozen=True)
class Input:
    """One input and where it comes from: `published`, `quoted`, `list price` or `assumed`."""

    origin: str
    text: str


def published_demand() -> Demand:
    """120 requests a minute, all month."""
    per_s = PEAK_PER_MINUTE / 60
    return Demand(peak_per_s=per_s, mean_per_s=per_s)


def published_costs(prices: Prices) -> list[ServerCost]:
    """Both servers' months."""
    return cost_all(
        RATES,
        prices.hourly(INSTANCE),
        published_demand(),
        LogShape(puts_per_record=PUTS_PER_RECORD),
        prices,
        PAID,
    )


def published_inputs(prices: Prices) -> list[Input]:
    """What goes in, for the reader."""
    one = LogShape(puts_per_record=1)
    plain = cost_all(
        {TORCHSERVE: RATES[TORCHSERVE]},
        prices.hourly(INSTANCE),
        published_demand(),
        one,
        prices,
        {TORCHSERVE: PAID[TORCHSERVE]},
    )[0]
    return [
        Input("published", "TorchServe 47 req/s on each of two T4 instances"),
        Input("published", "Triton 183 req/s on one T4 instance"),
        Input(
            "quoted",
            f"{PEAK_PER_MINUTE} requests a minute (of the same publication, at second hand)",
        ),
        Input(
            "list price",
            f"{INSTANCE} {prices.hourly(INSTANCE)} $/h in {prices.region}, 730 h",
        ),
        Input("list price", f"S3 {prices.put_per_1000} $ per 1,000 puts"),
        Input(
            "assumed",
            "T4 instances are g4dn.xlarge: one is the published $384 to the dollar",
        ),
        Input(
            "assumed", "the same rate all month; records of 700 bytes, kept for 30 days"
        ),
        Input(
            "assumed",
            f"{PUTS_PER_RECORD:.2f} S3 requests a prediction before: fitted to the $35 that the"
            " publication does not itemise; with one each the bill is"
            f" ${plain.total_each_usd:.0f}",
        ),
        Input(
            "assumed",
            "after: the log in batched objects, or none (the same to the dollar)",
        ),
    ]


def published_totals(costs: list[ServerCost]) -> dict[str, float]:
    """The month's total as each was run: TorchServe put by put, Triton without."""
    by_name = {cost.name: cost for cost in costs}
    return {
        TORCHSERVE: by_name[TORCHSERVE].total_each_usd,
        TRITON: by_name[TRITON].total_batched_usd,
    }
