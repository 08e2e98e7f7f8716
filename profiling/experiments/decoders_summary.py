"""Statistics of `offpath bench decoders`, computed when a result is read."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from offpath.profiling.experiments.decoders import DecodersMeasurement, DecodersResult
from offpath.profiling.experiments.decoders_ways import BASELINES

# Less CPU than this share of the time, and something else had the core.
NOISY_SHARE = 0.93


@dataclass(frozen=True)
class DecodersRow:
    """One way on one workload.

    Attributes:
        ms: of CPU an image, median of the rounds; `ms_low`, `ms_high` the extremes.
        mb_per_s: megabytes of JPEG a second.
        ratio: how many times as quick as the baseline of its kind, median of the rounds' own.
        difference: largest of a probability against the stock way.
        changed: photographs whose best class is another.
        cpu_share: CPU over wall time, of all rounds.
    """

    workload: str
    way: str
    kind: str
    is_ours: bool
    ms: float
    ms_low: float
    ms_high: float
    mb_per_s: float
    ratio: float
    difference: float
    changed: int
    cpu_share: float


def summarise_decoders(result: DecodersResult, workload: str) -> list[DecodersRow]:
    """One row a way in the order of the run, those of a kind together."""
    measured = {
        way: [m for m in result.measurements if m.workload == workload and m.way == way]
        for way in result.ways
    }
    times = {way: list_ms(rounds) for way, rounds in measured.items() if rounds}
    return [
        make_row(result, workload, way, ms, times, measured[way])
        for way, ms in times.items()
    ]


def list_ms(rounds: Sequence[DecodersMeasurement]) -> list[float]:
    """Milliseconds of CPU an image of each round."""
    return [1e3 * m.cpu_s / m.images for m in rounds]


def make_row(
    result: DecodersResult,
    workload: str,
    way: str,
    ms: Sequence[float],
    times: dict[str, list[float]],
    rounds: Sequence[DecodersMeasurement],
) -> DecodersRow:
    """Summarises the rounds of one way."""
    kind = result.ways[way]["kind"]
    median = statistics.median(ms)
    parity = next(p for p in result.parity if p.workload == workload and p.way == way)
    return DecodersRow(
        workload=workload,
        way=way,
        kind=kind,
        is_ours=result.ways[way]["is_ours"],
        ms=median,
        ms_low=min(ms),
        ms_high=max(ms),
        mb_per_s=result.workloads[workload]["mean_bytes"] / 1e3 / median,
        ratio=statistics.median(a / b for a, b in zip(times[BASELINES[kind]], ms)),
        difference=parity.difference,
        changed=parity.changed,
        cpu_share=sum(m.cpu_s for m in rounds) / sum(m.elapsed_s for m in rounds),
    )


def find_decoder_warnings(rows: Sequence[DecodersRow]) -> list[str]:
    """What makes the figures doubtful, with its cure."""
    noisy = [row for row in rows if row.cpu_share < NOISY_SHARE]
    if not noisy:
        return []
    least = min(row.cpu_share for row in noisy)
    return [
        f"noise: {len(noisy)} of {len(rows)} rows had less than {100 * NOISY_SHARE:.0f} % of a"
        f" core, the worst {100 * least:.0f} %: ratios hold better than ms; stop what else runs"
    ]
