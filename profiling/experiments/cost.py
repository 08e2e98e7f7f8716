"""Arithmetic of what a month of serving costs: instances for a peak rate, and the log's S3 bill.

Nothing is measured here. The log is priced twice for each server: as one put per record, the naive
way, and as batched objects, the way of offpath's spool. Only the number of puts in the published
example is fitted to a bill (cost_report.py); everything else is a list price or one of the
constants below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from offpath.archive.bounded_yaml import load_yaml
from offpath.errors import WrongOption
from offpath.handler.prediction_log.log_settings import PredictionLogSettings

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
GB = 2**30
# The shape of the prediction log. A record has five labels; a generated day of them took 0.16 of
# its size with gzip, of which 0.25 is a cautious reading. Each worker fills objects of its own.
RECORD_BYTES = 700.0
RETENTION_DAYS = 30.0
COMPRESSED_SHARE = 0.25
WORKERS = 2
PRICES_FILE = Path(__file__).with_name("prices.yaml")


def check_above_0(name: str, value: float) -> None:
    """Raises WrongOption unless the value is a number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise WrongOption(f"{name} is {value!r}: expected a number above 0")


@dataclass(frozen=True)
class Prices:
    """List prices in US dollars.

    Attributes:
        instances: type -> dollars per hour.
        gpus: type -> its GPU, for the types that have one.
        put_per_1000: dollars for 1,000 put requests.
        storage_per_gb_month: dollars for a GB (2^30 bytes, as S3 bills) kept for a month.
    """

    as_of: str
    region: str
    sources: dict[str, str]
    instances: dict[str, float]
    gpus: dict[str, str]
    put_per_1000: float
    storage_per_gb_month: float

    def hourly(self, instance: str) -> float:
        """Returns dollars per hour; raises WrongOption for a type that the file lacks."""
        if instance not in self.instances:
            raise WrongOption(
                f"no price for instance {instance!r}: expected one of"
                f" {', '.join(self.instances)}"
            )
        return self.instances[instance]

    def describe(self) -> str:
        return f"list prices of {self.region}, {self.as_of}: {', '.join(self.sources.values())}"

    def find_mixture(self, on_gpu: bool, instance: str | None) -> str | None:
        """Explains why rates with or without a GPU do not hold for an instance; None if they do."""
        if instance is None:
            return None
        gpu = self.gpus.get(instance)
        if on_gpu == (gpu is not None):
            return None
        measured = "with a GPU" if on_gpu else "on a CPU"
        has = "has none" if gpu is None else f"has a {gpu}"
        return f"the rates were measured {measured}, {instance} {has}: its own rates are unknown"


def load_prices() -> Prices:
    content = load_yaml(PRICES_FILE.read_bytes(), PRICES_FILE.name)
    s3 = content.pop("s3")
    return Prices(**content, **s3)


@dataclass(frozen=True)
class Demand:
    """The load to serve.

    Attributes:
        peak_per_s: requests per second at the peak; the number of instances follows from it.
        mean_per_s: requests per second over all hours; the S3 bill follows from it.
        head_room: share of an instance's rate that stays free at the peak, in [0, 1).
    """

    peak_per_s: float
    mean_per_s: float
    head_room: float = 0.3

    def __post_init__(self) -> None:
        check_above_0("peak rate", self.peak_per_s)
        check_above_0("mean rate", self.mean_per_s)
        if self.mean_per_s > self.peak_per_s:
            raise WrongOption(
                f"the mean rate is {self.mean_per_s:g} per second: expected at most the peak,"
                f" {self.peak_per_s:g}"
            )
        if not 0 <= self.head_room < 1:
            raise WrongOption(
                f"head-room is {self.head_room!r}: expected a share from 0 to below 1"
            )

    @property
    def predictions(self) -> float:
        """Predictions per month."""
        return self.mean_per_s * 3600 * HOURS_PER_MONTH

    def count_needed(self, rate_per_s: float) -> int:
        """Returns the instances of one rate that serve the peak with the head-room left."""
        # Slightly less, because 10 * 0.7 is not exactly 7 in floating point.
        share = self.peak_per_s / (rate_per_s * (1 - self.head_room)) - 1e-9
        return max(1, math.ceil(share))


def fill_objects(mean_per_s: float, instances: int) -> float:
    """Returns the records in a batched object, which the spool seals by size or by age."""
    by_age = mean_per_s / (instances * WORKERS) * PredictionLogSettings.segment_max_age_s
    by_size = PredictionLogSettings.segment_max_bytes / RECORD_BYTES
    return max(1.0, min(by_age, by_size))


@dataclass(frozen=True)
class LogCost:
    """The log's S3 bill in dollars per month, in the steady state when old records expire."""

    puts: float
    requests_usd: float
    storage_usd: float

    @property
    def usd(self) -> float:
        return self.requests_usd + self.storage_usd


def cost_log(predictions: float, puts: float, record_bytes: float, prices: Prices) -> LogCost:
    """Returns the S3 bill of a month's records, of `record_bytes` each as they are stored."""
    kept_gb = predictions * record_bytes / GB * RETENTION_DAYS / DAYS_PER_MONTH
    return LogCost(puts, puts / 1000 * prices.put_per_1000, kept_gb * prices.storage_per_gb_month)


@dataclass(frozen=True)
class ServerCost:
    """The month of one server.

    Attributes:
        rate_per_s: requests per second that one instance answers.
        needed: instances for the peak at the head-room.
        paid: instances on the bill.
        peak_share: share of the paid instances' rate that the peak takes.
        log_each, log_batched: the log with one put per record, and in batched objects.
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
        return self.compute_usd + log.usd

    def per_million_usd(self, log: LogCost) -> float:
        return self.total_usd(log) / self.predictions * 1e6


def cost_server(
    name: str,
    rate_per_s: float,
    hourly_usd: float,
    demand: Demand,
    prices: Prices,
    paid: int | None = None,
    puts_per_record: float = 1.0,
) -> ServerCost:
    """Returns the month of one server.

    Args:
        paid: instances on the bill; None for as many as are needed.
        puts_per_record: put requests for each record of the naive way.

    Raises:
        WrongOption: a rate or price that is not above 0.
    """
    check_above_0(f"rate of {name!r}", rate_per_s)
    check_above_0("hourly price", hourly_usd)
    needed = demand.count_needed(rate_per_s)
    count = needed if paid is None else paid
    total = demand.predictions
    objects = total / fill_objects(demand.mean_per_s, count)
    return ServerCost(
        name=name,
        rate_per_s=rate_per_s,
        needed=needed,
        paid=count,
        peak_share=demand.peak_per_s / (rate_per_s * count),
        compute_usd=count * hourly_usd * HOURS_PER_MONTH,
        predictions=total,
        log_each=cost_log(total, total * puts_per_record, RECORD_BYTES, prices),
        log_batched=cost_log(total, objects, RECORD_BYTES * COMPRESSED_SHARE, prices),
    )
