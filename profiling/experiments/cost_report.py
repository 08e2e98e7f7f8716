"""Renders months' costs: tables for the terminal, plain data, and what follows in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from offpath.profiling.experiments.cost import Demand, ServerCost
from offpath.profiling.experiments.cost_published import PUBLISHED_USD, SOURCE, Input
from offpath.profiling.report.report import new_table


def print_costs(costs: Sequence[ServerCost], demand: Demand, console: Console) -> None:
    """Prints instances, dollars and what they mean."""
    console.print(make_instance_table(costs, demand))
    console.print(make_total_table(costs))
    for line in draw_conclusions(costs, demand):
        console.print(line, highlight=False, soft_wrap=True)


def make_instance_table(costs: Sequence[ServerCost], demand: Demand) -> Table:
    """Instances needed and paid for."""
    table = new_table(
        f"peak {demand.peak_per_s:g} requests a second, head-room"
        f" {100 * demand.head_room:.0f} %, {demand.hours:g} hours a month",
        *("req/s each", "needed", "paid", "used at peak %", "instances $/month"),
    )
    for cost in costs:
        table.add_row(
            cost.name,
            f"{cost.rate_per_s:,.1f}",
            str(cost.needed),
            str(cost.paid),
            f"{100 * cost.peak_share:.0f}",
            f"{cost.compute_usd:,.2f}",
        )
    return table


def make_total_table(costs: Sequence[ServerCost]) -> Table:
    """The log both ways, totals and price of a million predictions."""
    table = new_table(
        f"{costs[0].predictions / 1e6:,.2f} million predictions a month:"
        " log put by put | batched",
        *("log $", "total $", "$/million", "| log $", "total $", "$/million"),
    )
    for cost in costs:
        table.add_row(
            cost.name,
            f"{cost.log_each.usd:,.2f}",
            f"{cost.total_each_usd:,.2f}",
            f"{cost.per_million_usd(cost.total_each_usd):,.2f}",
            f"{cost.log_batched.usd:,.2f}",
            f"{cost.total_batched_usd:,.2f}",
            f"{cost.per_million_usd(cost.total_batched_usd):,.2f}",
        )
    return table


def draw_conclusions(costs: Sequence[ServerCost], demand: Demand) -> list[str]:
    """What the figures say in plain words."""
    lines = [line for cost in costs for line in find_idle_instances(cost, demand)]
    if len(costs) > 1 and all(cost.needed == 1 for cost in costs):
        lines.append(
            f"at {demand.peak_per_s:g} a second every server here needs a single instance:"
            " a faster one does not lower this bill, a smaller instance might"
        )
    return lines


def find_idle_instances(cost: ServerCost, demand: Demand) -> list[str]:
    """Instances that are paid for but not needed."""
    idle = cost.paid - cost.needed
    if idle < 1:
        return []
    few = (
        "a single instance" if cost.needed == 1 else f"{cost.needed} instances"
    ) + " would have done"
    idle_usd = idle * cost.compute_usd / cost.paid
    return [
        f"{cost.name}: {few}: {60 * demand.peak_per_s:g} requests a minute are"
        f" {demand.peak_per_s:g} a second, one instance answers {cost.rate_per_s:g};"
        f" the rest of the bill's {cost.paid} are ${idle_usd:,.0f} a month"
        " for a spare"
    ]


def print_published(
    inputs: Sequence[Input], totals: Mapping[str, float], console: Console
) -> None:
    """The published bill: inputs by origin, computed against published."""
    console.print(f"the published bill ({SOURCE})", highlight=False, soft_wrap=True)
    for one in inputs:
        console.print(
            f"  {one.origin:<10}  {one.text}", highlight=False, soft_wrap=True
        )
    for name, usd in totals.items():
        console.print(
            f"{name}: computed ${usd:,.2f}, published ${PUBLISHED_USD[name]}",
            highlight=False,
        )


def as_json(costs: Sequence[ServerCost], demand: Demand) -> dict[str, Any]:
    """Everything as plain data; dollars unrounded."""
    return {
        "demand": asdict(demand) | {"predictions": demand.predictions},
        "servers": [
            asdict(cost)
            | {
                "total_each_usd": cost.total_each_usd,
                "total_batched_usd": cost.total_batched_usd,
                "per_million_each_usd": cost.per_million_usd(cost.total_each_usd),
                "per_million_batched_usd": cost.per_million_usd(cost.total_batched_usd),
            }
            for cost in costs
        ],
        "conclusions": draw_conclusions(costs, demand),
    }
