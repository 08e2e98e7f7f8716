"""GPU hosts alone, or GPU hosts with CPU hosts that decode for them: which serves a peak for less.

Arithmetic on what one picture costs; docs/cost.md has it in words. What a GPU answers is the
user's assumption, what a picture takes of a CPU the user's measurement.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from offpath.profiling.experiments.cost import (
    Demand,
    check_above,
    count_instances,
)
from offpath.profiling.experiments.prices import Prices
from offpath.profiling.report.document import Document, Section, Table


@dataclass(frozen=True)
class Picture:
    """What one picture takes.

    Attributes:
        gpu_per_s: pictures a second that one GPU answers when nothing else limits it.
        cpu_ms: of one host that does everything, milliseconds of one vCPU.
        decode_cpu_ms, model_cpu_ms: of the host that decodes, and of the one with the GPU, where
            those are two.
    """

    gpu_per_s: float
    cpu_ms: float
    decode_cpu_ms: float
    model_cpu_ms: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_above(name, value)


@dataclass(frozen=True)
class Fleet:
    """One way to serve the peak.

    Attributes:
        gpu_per_s, cpu_per_s: what a host of each kind answers; 0 where there is none.
        gpu_hosts, cpu_hosts: how many.
        gpu_share: of the GPUs' own rate that the peak uses.
    """

    name: str
    gpu_per_s: float
    gpu_hosts: int
    cpu_per_s: float
    cpu_hosts: int
    gpu_share: float
    usd: float


def compute_fleets(
    picture: Picture, gpu_type: str, cpu_type: str, demand: Demand, prices: Prices
) -> list[Fleet]:
    """Both ways, GPU hosts alone first.

    Raises:
        ExpectedError: a type without a price or a number of vCPUs.
    """
    vcpus, gpu_usd = prices.count_vcpus(gpu_type), prices.hourly(gpu_type)
    decoders, cpu_usd = prices.count_vcpus(cpu_type), prices.hourly(cpu_type)
    alone = min(picture.gpu_per_s, vcpus * 1e3 / picture.cpu_ms)
    model = min(picture.gpu_per_s, vcpus * 1e3 / picture.model_cpu_ms)
    decode = decoders * 1e3 / picture.decode_cpu_ms

    def make(name: str, gpu_per_s: float, cpu_per_s: float) -> Fleet:
        gpus = count_hosts(demand, gpu_per_s)
        cpus = count_hosts(demand, cpu_per_s) if cpu_per_s else 0
        share = demand.peak_per_s / (gpus * picture.gpu_per_s)
        usd = demand.hours * (gpus * gpu_usd + cpus * cpu_usd)
        return Fleet(name, gpu_per_s, gpus, cpu_per_s, cpus, share, usd)

    return [
        make(f"{gpu_type} alone", alone, 0.0),
        make(f"{gpu_type} and {cpu_type}", model, decode),
    ]


def count_hosts(demand: Demand, rate_per_s: float) -> int:
    """Hosts of a kind for the peak, at the head-room."""
    needed = count_instances(demand.peak_per_s, rate_per_s, demand.head_room)
    return max(needed, math.ceil(demand.min_instances))


def draw_conclusion(fleets: list[Fleet]) -> str:
    """Which is cheaper, in plain words."""
    alone, tiers = fleets
    best, other = (tiers, alone) if tiers.usd < alone.usd else (alone, tiers)
    saved = 100 * (1 - best.usd / other.usd)
    if saved < 0.5:
        return "both cost the same: one kind of host is less to look after"
    return f"{best.name}: {saved:.0f} % less than {other.name}"


ASSUMED = (
    "the GPU's rate is what was given, not measured here; a vCPU is taken to be one of those that"
    " the milliseconds were measured on"
)


def document_of(fleets: list[Fleet], demand: Demand, prices: Prices) -> Document:
    """As a table; fits 80 columns."""
    table = Table(
        f"peak {demand.peak_per_s:g} requests a second, head-room"
        f" {100 * demand.head_room:.0f} %, {demand.hours:g} hours a month",
        ["", "GPU hosts", "req/s each", "CPU hosts", "req/s each", "GPU %", "$/month"],
        [
            [
                fleet.name,
                str(fleet.gpu_hosts),
                f"{fleet.gpu_per_s:,.0f}",
                str(fleet.cpu_hosts),
                f"{fleet.cpu_per_s:,.0f}" if fleet.cpu_hosts else "",
                f"{100 * fleet.gpu_share:.0f}",
                f"{fleet.usd:,.0f}",
            ]
            for fleet in fleets
        ],
    )
    sources = f"list prices of {prices.region}, {prices.as_of}"
    said = f"{draw_conclusion(fleets)}\n{sources}"
    return Document(
        "One kind of host, or two", [Section("", [table], said)], warnings=[ASSUMED]
    )


def as_json(fleets: list[Fleet], picture: Picture, demand: Demand) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "picture": asdict(picture),
        "demand": asdict(demand),
        "fleets": [asdict(fleet) for fleet in fleets],
        "conclusion": draw_conclusion(fleets),
        "warnings": [ASSUMED],
    }
