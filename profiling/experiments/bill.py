"""`offpath cost`: what a month of serving costs, instances for a peak rate and the log's S3 bill.

Nothing is measured here. The log is priced twice for each server: as one put per record, the naive
way, and as batched objects, the way of offpath's spool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from offpath.archive.model_config import load_yaml
from offpath.errors import WrongOption
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import load_run
from offpath.profiling.core.statistics import Summary, is_limit
from offpath.profiling.report.document import Document, Section, format_table

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
# The share of an instance's rate that stays free at the peak.
HEAD_ROOM = 0.3
GB = 2**30
# The shape of the prediction log. A record has five labels; a generated day of them took 0.16 of
# its size with gzip, of which 0.25 is a cautious reading. Each worker fills objects of its own.
RECORD_BYTES = 700.0
RETENTION_DAYS = 30.0
COMPRESSED_SHARE = 0.25
WORKERS = 2
PRICES_FILE = Path(__file__).with_name("prices.yaml")
TITLE = "Cost per month"
# Prefix of the metrics of a window on a machine with a GPU, see `load.load_window`.
GPU_ROWS = "gpu."


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

    def check_measured(self, on_gpu: bool, instance: str) -> None:
        """Raises WrongOption for rates of a CPU and an instance with a GPU, or the other way."""
        gpu = self.gpus.get(instance)
        if on_gpu != (gpu is not None):
            measured = "with a GPU" if on_gpu else "on a CPU"
            has = "has none" if gpu is None else f"has a {gpu}"
            raise WrongOption(
                f"the rates were measured {measured}, {instance} {has}: measure on that instance"
            )


def load_prices() -> Prices:
    content = load_yaml(PRICES_FILE.read_bytes(), PRICES_FILE.name)
    s3 = content.pop("s3")
    return Prices(**content, **s3)


@dataclass(frozen=True)
class Bill:
    """The month of one server, which answers the same rate at every hour.

    Attributes:
        rate_per_s: requests per second that one instance answers.
    """

    name: str
    rate_per_s: float
    peak_per_s: float
    hourly_usd: float
    prices: Prices

    @cached_property
    def needed(self) -> int:
        # Slightly less, because 10 * 0.7 is not exactly 7 in floating point.
        share = self.peak_per_s / (self.rate_per_s * (1 - HEAD_ROOM)) - 1e-9
        return max(1, math.ceil(share))

    @property
    def compute_usd(self) -> float:
        return self.needed * self.hourly_usd * HOURS_PER_MONTH

    @property
    def predictions(self) -> float:
        return self.peak_per_s * 3600 * HOURS_PER_MONTH

    @property
    def each_usd(self) -> float:
        """The log's S3 bill with a put for each record."""
        return self._price_log(self.predictions, RECORD_BYTES)

    @property
    def batched_usd(self) -> float:
        """The log's S3 bill with batched objects, which the spool seals by size or by age."""
        by_age = self.peak_per_s / (self.needed * WORKERS) * PredictionLogSettings.segment_max_age_s
        by_size = PredictionLogSettings.segment_max_bytes / RECORD_BYTES
        puts = self.predictions / max(1.0, min(by_age, by_size))
        return self._price_log(puts, RECORD_BYTES * COMPRESSED_SHARE)

    def _price_log(self, puts: float, record_bytes: float) -> float:
        """Returns dollars for puts and storage, in the steady state when old records expire."""
        kept_gb = self.predictions * record_bytes / GB * RETENTION_DAYS / DAYS_PER_MONTH
        storage_usd = kept_gb * self.prices.storage_per_gb_month
        return puts / 1000 * self.prices.put_per_1000 + storage_usd


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


def document_of(
    rates: Mapping[str, float], peak_per_s: float, hourly_usd: float, doubts: Sequence[str] = ()
) -> Document:
    """Makes the document of a bill from measured rates by server."""
    check_above_0("--peak-per-s", peak_per_s)
    check_above_0("--hourly-price", hourly_usd)
    prices = load_prices()
    bills = [Bill(name, rate, peak_per_s, hourly_usd, prices) for name, rate in rates.items()]
    return Document(TITLE, show_bills(bills), warnings=doubts)


def show_bills(bills: Sequence[Bill]) -> list[Section]:
    """Shows instances and dollars; the tables fit 80 columns."""
    first, prices = bills[0], bills[0].prices
    instances = [
        [
            bill.name,
            f"{bill.rate_per_s:,.1f}",
            str(bill.needed),
            f"{100 * bill.peak_per_s / (bill.rate_per_s * bill.needed):.0f}",
            f"{bill.compute_usd:,.2f}",
        ]
        for bill in bills
    ]
    totals = [
        [
            bill.name,
            way,
            f"{log_usd:,.2f}",
            f"{bill.compute_usd + log_usd:,.2f}",
            f"{(bill.compute_usd + log_usd) / bill.predictions * 1e6:,.2f}",
        ]
        for bill in bills
        for way, log_usd in (("put by put", bill.each_usd), ("batched", bill.batched_usd))
    ]
    return [
        Section(
            "Instances",
            format_table(
                ["", "req/s each", "needed", "used at peak %", "$/month"],
                instances,
                title=f"peak {first.peak_per_s:g} requests per second, head-room"
                f" {100 * HEAD_ROOM:.0f} %",
            ),
        ),
        Section(
            "With the prediction log",
            format_table(
                ["", "log to S3", "log $", "total $", "$/million"],
                totals,
                title=f"{first.predictions / 1e6:,.2f} million predictions per month",
                words=2,
            ),
            note=f"list prices of {prices.region}, {prices.as_of}:"
            f" {', '.join(prices.sources.values())}",
        ),
    ]
