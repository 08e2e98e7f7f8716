"""What serving costs a month: instances for a peak rate, and the prediction log's S3 bill.

Pure functions of rates and prices; nothing is measured here. The log is priced twice for each
server: as one put per record, the naive way, and as batched objects, the way of our spool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from offpath.handler.errors import WrongOption
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.profiling.experiments.prices import Prices

HOURS_A_MONTH = 730.0
DAYS_A_MONTH = HOURS_A_MONTH / 24
GB = 2**30


def check_above(name: str, value: float) -> None:
    """Raises WrongOption unless the value is a number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise WrongOption(f"{name} is {value!r}: expected a number above 0")


def check_from(name: str, value: float, least: float) -> None:
    """Raises WrongOption unless the value is a number from `least`."""
    if not (math.isfinite(value) and value >= least):
        raise WrongOption(f"{name} is {value!r}: expected a number from {least:g}")


@dataclass(frozen=True)
class Demand:
    """What has to be served.

    Attributes:
        peak_per_s: requests a second that the instances are counted for.
        mean_per_s: over the hours; what S3 is paid for.
        head_room: share of an instance's rate that is kept free at the peak, in [0, 1).
        hours: that the instances run in a month.
        min_instances: never fewer, for instance 2 for one to fail.
    """

    peak_per_s: float
    mean_per_s: float
    head_room: float = 0.3
    hours: float = HOURS_A_MONTH
    min_instances: int = 1

    def __post_init__(self) -> None:
        check_above("peak rate", self.peak_per_s)
        check_above("mean rate", self.mean_per_s)
        check_above("hours", self.hours)
        check_from("minimum of instances", self.min_instances, 1)
        if self.mean_per_s > self.peak_per_s:
            raise WrongOption(
                f"the mean rate {self.mean_per_s:g} a second is above the peak"
                f" {self.peak_per_s:g}: expected at most the peak"
            )
        if not 0 <= self.head_room < 1:
            raise WrongOption(
                f"head-room is {self.head_room!r}: expected a share from 0 to below 1"
            )

    @property
    def predictions(self) -> float:
        """Predictions a month."""
        return self.mean_per_s * 3600 * self.hours


@dataclass(frozen=True)
class LogShape:
    """How the prediction log is kept.

    Attributes:
        record_bytes: one record, uncompressed.
        retention_days: how long it stays in the bucket; 0: storage is not counted.
        puts_per_record: of the naive way; 0 when it logs nothing to S3.
        records_per_object: of the batched way; None: what our spool's defaults make of the rate.
        compressed_share: size of a batched record over an uncompressed one.
        workers: of one instance; each fills objects of its own.
    """

    record_bytes: float = 700.0
    retention_days: float = 30.0
    puts_per_record: float = 1.0
    records_per_object: float | None = None
    compressed_share: float = 0.25
    workers: int = 2

    def __post_init__(self) -> None:
        check_above("record size", self.record_bytes)
        check_above("compressed share", self.compressed_share)
        check_above("workers of an instance", self.workers)
        check_from("days of retention", self.retention_days, 0)
        check_from("puts per record", self.puts_per_record, 0)
        if self.records_per_object is not None:
            check_from("records per object", self.records_per_object, 1)

    def fill_objects(self, mean_per_s: float, instances: int) -> float:
        """Records in a batched object: as given, else as our spool seals, by size or by age."""
        if self.records_per_object is not None:
            return self.records_per_object
        worker_per_s = mean_per_s / (instances * self.workers)
        by_age = worker_per_s * PredictionLogSettings.segment_max_age_s
        by_size = PredictionLogSettings.segment_max_bytes / self.record_bytes
        return max(1.0, min(by_age, by_size))


@dataclass(frozen=True)
class LogCost:
    """The log's S3 bill, dollars a month in the steady state, when old records expire."""

    puts: float
    requests_usd: float
    storage_usd: float

    @property
    def usd(self) -> float:
        """Requests and storage."""
        return self.requests_usd + self.storage_usd


@dataclass(frozen=True)
class ServerCost:
    """One server's month.

    Attributes:
        rate_per_s: of one instance.
        needed: instances for the peak at the head-room; paid: instances on the bill.
        peak_share: share of the paid instances' rate that the peak takes.
        log_each, log_batched: one put per record; batched objects.
    """

    name: str
    rate_per_s: float
    needed: int
    paid: int
    peak_share: float
    compute_usd: float
    predictions: float
    log_each: LogCost
    log_batched: LogCost

    def total_usd(self, log: LogCost) -> float:
        """Month's total with the log kept one way."""
        return self.compute_usd + log.usd

    def per_million_usd(self, log: LogCost) -> float:
        """The same, for a million predictions."""
        return self.total_usd(log) / self.predictions * 1e6


def count_instances(peak_per_s: float, rate_per_s: float, head_room: float) -> int:
    """Instances that serve the peak with `head_room` of their rate left."""
    # A hair less: 7 a second on instances with 10 and 0.3 is one, whatever floats make of 10 * 0.7.
    return max(1, math.ceil(peak_per_s / (rate_per_s * (1 - head_room)) - 1e-9))


def cost_server(
    name: str,
    rate_per_s: float,
    hourly_usd: float,
    demand: Demand,
    shape: LogShape,
    prices: Prices,
    paid: int | None = None,
) -> ServerCost:
    """One server's month.

    Args:
        rate_per_s: what one instance answers.
        paid: instances on the bill; by default as many as are needed.

    Raises:
        WrongOption: a rate, price or count that is not above 0.
    """
    check_above(f"rate of {name!r}", rate_per_s)
    check_above("hourly price", hourly_usd)
    needed = count_instances(demand.peak_per_s, rate_per_s, demand.head_room)
    count = max(needed, demand.min_instances) if paid is None else paid
    check_from(f"instances of {name!r}", count, 1)

    def cost_log(puts_per_record: float, record_bytes: float) -> LogCost:
        puts = demand.predictions * puts_per_record
        kept_months = shape.retention_days / DAYS_A_MONTH
        kept_gb = demand.predictions * record_bytes / GB * kept_months
        return LogCost(
            puts=puts,
            requests_usd=puts / 1000 * prices.put_per_1000,
            storage_usd=kept_gb * prices.storage_per_gb_month,
        )

    filled = shape.fill_objects(demand.mean_per_s, count)
    return ServerCost(
        name=name,
        rate_per_s=rate_per_s,
        needed=needed,
        paid=count,
        peak_share=demand.peak_per_s / (rate_per_s * count),
        compute_usd=count * hourly_usd * demand.hours,
        predictions=demand.predictions,
        # Whoever puts nothing stores nothing.
        log_each=cost_log(
            shape.puts_per_record, shape.record_bytes if shape.puts_per_record else 0
        ),
        log_batched=cost_log(1 / filled, shape.record_bytes * shape.compressed_share),
    )


def cost_all(
    rates: Mapping[str, float],
    hourly_usd: float,
    demand: Demand,
    shape: LogShape,
    prices: Prices,
    paid: Mapping[str, int],
) -> list[ServerCost]:
    """Every server's month, in order.

    Raises:
        WrongOption: no server, or `paid` names one that is not among them.
    """
    if not rates:
        raise WrongOption(
            "no server's rate: expected --rate-per-instance NAME=RATE, or --result FILE"
        )
    for name in paid:
        if name not in rates:
            raise WrongOption(
                f"--paid-instances names {name!r}: expected one of {', '.join(rates)}"
            )
    return [
        cost_server(name, rate, hourly_usd, demand, shape, prices, paid.get(name))
        for name, rate in rates.items()
    ]
