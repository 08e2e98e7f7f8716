"""Months' costs as a document and as plain data, and what follows from them in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from offpath.profiling.experiments.cost import Demand, ServerCost
from offpath.profiling.experiments.prices import Prices
from offpath.profiling.report.document import Document, Section, Table


def document_of(
    costs: Sequence[ServerCost],
    demand: Demand,
    prices: Prices,
    warnings: Sequence[str] = (),
) -> Document:
    """Instances, dollars and what they mean; fits 80 columns."""
    instances = Table(
        f"peak {demand.peak_per_s:g} requests a second, head-room"
        f" {100 * demand.head_room:.0f} %, {demand.hours:g} hours a month",
        ["", "req/s each", "needed", "paid", "used at peak %", "$/month"],
        [
            [
                cost.name,
                f"{cost.rate_per_s:,.1f}",
                str(cost.needed),
                str(cost.paid),
                f"{100 * cost.peak_share:.0f}",
                f"{cost.compute_usd:,.2f}",
            ]
            for cost in costs
        ],
    )
    totals = Table(
        f"{costs[0].predictions / 1e6:,.2f} million predictions a month",
        ["", "log to S3", "log $", "total $", "$/million"],
        [
            [
                cost.name,
                way,
                f"{log.usd:,.2f}",
                f"{cost.total_usd(log):,.2f}",
                f"{cost.per_million_usd(log):,.2f}",
            ]
            for cost in costs
            for way, log in (
                ("put by put", cost.log_each),
                ("batched", cost.log_batched),
            )
        ],
        words=2,
    )
    sources = f"list prices of {prices.region}, {prices.as_of}: " + ", ".join(
        prices.sources.values()
    )
    return Document(
        "What it costs",
        [
            Section(
                "Instances", [instances], "\n".join(draw_conclusions(costs, demand))
            ),
            Section("With the prediction log", [totals], sources),
        ],
        warnings=warnings,
    )


def draw_conclusions(costs: Sequence[ServerCost], demand: Demand) -> list[str]:
    """What the figures say in plain words."""
    lines = [describe_idle(cost, demand) for cost in costs if cost.paid > cost.needed]
    if len(costs) > 1 and all(cost.needed == 1 for cost in costs):
        lines.append(
            f"at {demand.peak_per_s:g} a second every server here needs a single instance:"
            " a faster one does not lower this bill, a smaller instance might"
        )
    return lines


def describe_idle(cost: ServerCost, demand: Demand) -> str:
    """Instances that are paid for but not needed."""
    few = "a single instance" if cost.needed == 1 else f"{cost.needed} instances"
    idle_usd = (cost.paid - cost.needed) * cost.compute_usd / cost.paid
    return (
        f"{cost.name}: {few} would have done: {60 * demand.peak_per_s:g} requests a minute are"
        f" {demand.peak_per_s:g} a second, one instance answers {cost.rate_per_s:g};"
        f" the rest of the bill's {cost.paid} are ${idle_usd:,.0f} a month for a spare"
    )


def as_json(
    costs: Sequence[ServerCost], demand: Demand, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything as plain data; dollars unrounded."""
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
