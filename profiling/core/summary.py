"""Statistics over a result's raw values; pure functions, computed when a result is read."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offpath.profiling.core.result import BenchResult, Measurement
from offpath.profiling.load.call import NPY
from offpath.profiling.load.limits import DECODE, FORWARD

PERCENTILES: tuple[float, ...] = (50, 90, 95, 99, 99.9)


class DrawnLimit(NamedTuple):
    """What the cores allow, as charts draw it: images a second, and which work it is."""

    rate: float
    name: str


@dataclass(frozen=True)
class Row:
    """One server on one workload.

    Attributes:
        rate: good replies a second, median of the rounds; `rate_low`, `rate_high` the extremes.
        latency_ms: percentile -> ms, over the 200s of all rounds.
        failures: replies that were not 200, by status.
        ratio: rate over the baseline's, None without one.
        decode_share: rate over the decode-only limit's; None for thin clients.
        limit_share: rate over what decode and forward together allow, or forward alone for thin
            clients.
        cpu_ms: CPU milliseconds a reply by group, median of the rounds.
        ready_s, first_ms, steady_ms: of the server's starts, see `profiling.result.Start`.
        fewest_replies: good replies of the round that had the fewest.
        other_cores: cores that were busy with something else, median of the rounds.
    """

    workload: str
    server: str
    rate: float
    rate_low: float
    rate_high: float
    latency_ms: dict[float, float]
    failures: dict[str, int]
    replies: int
    ratio: float | None
    decode_share: float | None
    limit_share: float | None
    cpu_ms: dict[str, float]
    other_cores: float
    rss_bytes: dict[str, float]
    ready_s: float
    first_ms: float | None
    steady_ms: float | None
    pss_bytes: dict[str, float]
    fewest_replies: int
    gpu: dict[str, float]


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile by linear interpolation between the nearest ranks; NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(result: BenchResult, baseline: str | None) -> list[Row]:
    """One row per workload and server, in the order of the run."""
    rows = []
    for workload in result.workloads:
        base = select(result, workload, baseline)
        for server in result.servers:
            measured = select(result, workload, server)
            if measured:
                rows.append(make_row(result, measured, base))
    return rows


def select(result: BenchResult, workload: str, server: str | None) -> list[Measurement]:
    """The measurements of one server on one workload."""
    return [
        m for m in result.measurements if m.workload == workload and m.server == server
    ]


def make_row(
    result: BenchResult, measured: Sequence[Measurement], base: Sequence[Measurement]
) -> Row:
    """Summarises the rounds of one server on one workload; `base` are the baseline's."""
    rates = [rate_of(m) for m in measured]
    rate = statistics.median(rates)
    workload = measured[0].workload
    starts = [start for start in result.starts if start.server == measured[0].server]
    engine = own_engine(result, measured[0].server)
    decode, both = limit_rate(result, workload), combined_limit(
        result, workload, engine
    )
    if result.servers.get(measured[0].server, {}).get("content") == NPY:
        # A thin client's decoding costs the server's cores nothing.
        decode, both = None, limit_rate(result, None, engine)
    return Row(
        workload=workload,
        server=measured[0].server,
        rate=rate,
        rate_low=min(rates),
        rate_high=max(rates),
        latency_ms=pooled_percentiles(measured),
        failures=count_failures(measured),
        replies=sum(sum(m.statuses.values()) for m in measured),
        ratio=(
            median_of_ratios(measured, base)
            if result.settings.get("side_by_side")
            else ratio_of_medians(measured, base)
        ),
        decode_share=rate / decode if decode else None,
        limit_share=rate / both if both else None,
        cpu_ms=median_by_group([cpu_ms_per_reply(m) for m in measured]),
        other_cores=statistics.median(m.other_cores for m in measured),
        rss_bytes=median_by_group([dict(m.rss_bytes) for m in measured]),
        ready_s=statistics.median(m.ready_s for m in measured),
        first_ms=median_or_none([start.first_ms for start in starts]),
        steady_ms=median_or_none(
            [start.steady_ms for start in starts if start.steady_ms is not None]
        ),
        pss_bytes=median_by_group([dict(m.pss_bytes) for m in measured]),
        fewest_replies=min(m.statuses.get("200", 0) for m in measured),
        gpu=median_by_group([m.gpu for m in measured]),
    )


def median_or_none(values: Sequence[float]) -> float | None:
    """Median, None for no values."""
    return statistics.median(values) if values else None


def rate_of(measurement: Measurement) -> float:
    """Good replies a second."""
    return measurement.statuses.get("200", 0) / measurement.elapsed_s


def ratio_of_medians(
    measured: Sequence[Measurement], base: Sequence[Measurement]
) -> float | None:
    """Of the rounds' rates; None without a baseline that answered."""
    below = statistics.median(map(rate_of, base)) if base else 0.0
    return statistics.median(map(rate_of, measured)) / below if below else None


def median_of_ratios(
    measured: Sequence[Measurement], base: Sequence[Measurement]
) -> float | None:
    """Of the rounds that both have: turns of one round had cores of nearly one speed."""
    below = {m.round: rate_of(m) for m in base}
    ratios = [rate_of(m) / below[m.round] for m in measured if below.get(m.round)]
    return statistics.median(ratios) if ratios else None


def pooled_percentiles(measured: Iterable[Measurement]) -> dict[float, float]:
    """Percentiles over the latencies of all rounds."""
    latencies = sorted(ms for m in measured for ms in m.latencies_ms)
    return {percent: percentile(latencies, percent) for percent in PERCENTILES}


def count_failures(measured: Iterable[Measurement]) -> dict[str, int]:
    """Everything that was not a 200, by status."""
    total: Counter[str] = Counter()
    for m in measured:
        total.update({status: n for status, n in m.statuses.items() if status != "200"})
    return dict(total)


def cpu_ms_per_reply(measurement: Measurement) -> dict[str, float]:
    """CPU milliseconds a reply, by group; `other` is not ours."""
    replies = sum(measurement.statuses.values())
    return {
        group: 1000 * seconds / replies if replies else math.nan
        for group, seconds in measurement.cpu_s.items()
        if group != "other"
    }


def median_by_group(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each key over the samples."""
    return {
        group: statistics.median(sample.get(group, 0.0) for sample in samples)
        for group in samples[0]
    }


def limit_rate(
    result: BenchResult, workload: str | None, engine: str | None = None
) -> float | None:
    """Images a second of the decode-only limit, or of the forward-only one for None; the median.

    Args:
        engine: of the forward; None for eager fp32.
    """
    kind = FORWARD if workload is None else DECODE
    rates = [
        limit.images / limit.elapsed_s
        for limit in result.limits
        if limit.kind == kind and limit.workload == workload
        if workload is not None or limit.engine == engine
    ]
    return statistics.median(rates) if rates else None


def own_engine(result: BenchResult, server: str) -> str | None:
    """The engine that a server's limit was measured with; None for eager fp32."""
    engine = result.servers.get(server, {}).get("engine")
    has_limit = any(limit.engine == engine for limit in result.limits)
    return engine if has_limit else None


def combined_limit(
    result: BenchResult, workload: str, engine: str | None = None
) -> float | None:
    """Images a second when the cores do decode and forward and nothing else."""
    decode, forward = limit_rate(result, workload), limit_rate(result, None, engine)
    if not decode or not forward:
        return None
    return 1 / (1 / decode + 1 / forward)


def combined_limits(result: BenchResult, workload: str) -> dict[str | None, float]:
    """`combined_limit` by engine; None is eager's. Empty where no limit was measured."""
    engines = dict.fromkeys(limit.engine for limit in result.limits)
    rates = {engine: combined_limit(result, workload, engine) for engine in engines}
    return {engine: rate for engine, rate in rates.items() if rate}


def drawn_limit(result: BenchResult, workload: str) -> DrawnLimit | None:
    """The line in charts; None where no limit was measured.

    Decoding alone, which no engine changes; where the forward is most of the work that line would
    shrink all bars to nothing, so there it is decode and forward together by the quickest engine.
    """
    decode = limit_rate(result, workload)
    if not decode:
        return None
    both = max(combined_limits(result, workload).values(), default=0.0)
    if 0 < both < decode / 2:
        return DrawnLimit(both, "decode + forward")
    return DrawnLimit(decode, "decode alone")
