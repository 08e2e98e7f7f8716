"""Statistics over a profile's raw samples; pure functions, computed when a result is read.

The means of the stages and of `other` add up to the mean of the whole, and their shares to one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offpath.profiling.core.summary import percentile
from offpath.profiling.in_process.profile_result import (
    BatchSample,
    FunctionSample,
    LineSample,
)

OTHER = "other"
TOTAL = "total"
# Lines below this share of their function are not worth a look.
COLD_SHARE = 0.005


@dataclass(frozen=True)
class StageRow:
    """One stage over all batches.

    Attributes:
        count: batches.
        mean_s, p50_s, p95_s, p99_s: seconds a batch.
        image_mean_s, image_p50_s, image_p95_s, image_p99_s: the same with each batch's time divided
            by its images; the mean weighs every image alike.
        share: of the whole time of all batches.
        device_mean_s: seconds a batch on the accelerator, None where it was not measured.
    """

    stage: str
    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    image_mean_s: float
    image_p50_s: float
    image_p95_s: float
    image_p99_s: float
    share: float
    device_mean_s: float | None = None


@dataclass(frozen=True)
class BucketRow:
    """The functions of one bucket; own times of all buckets add up to the whole."""

    bucket: str
    calls: int
    own_s: float
    share: float


def summarise_stages(batches: Sequence[BatchSample]) -> list[StageRow]:
    """One row per stage in the order of the path, then `other`, then `total`; [] for no batches."""
    if not batches:
        return []
    return [
        *(
            make_row(batches, stage, stage_time(stage))
            for stage in list_stages(batches)
        ),
        make_row(batches, OTHER, other_s),
        make_row(batches, TOTAL, lambda batch: batch.total_s),
    ]


def list_stages(batches: Sequence[BatchSample]) -> list[str]:
    """Stages that took time in at least one batch, in the order in which batches name them."""
    order = dict.fromkeys(stage for batch in batches for stage in batch.stages_s)
    return [
        stage for stage in order if any(batch.stages_s.get(stage) for batch in batches)
    ]


def stage_time(stage: str) -> Callable[[BatchSample], float]:
    """Reads one stage's seconds from a batch, 0 where the batch lacks it."""
    return lambda batch: batch.stages_s.get(stage, 0.0)


def other_s(batch: BatchSample) -> float:
    """What no stage covers; negative when stages overlap, so that the table still adds up."""
    return batch.total_s - sum(batch.stages_s.values())


def make_row(
    batches: Sequence[BatchSample], stage: str, read: Callable[[BatchSample], float]
) -> StageRow:
    """Summarises one stage over all batches."""
    values = [read(batch) for batch in batches]
    by_image = [value / batch.size for value, batch in zip(values, batches)]
    whole_s = math.fsum(batch.total_s for batch in batches)
    device = [batch.device_s[stage] for batch in batches if stage in batch.device_s]
    return StageRow(
        stage=stage,
        count=len(batches),
        mean_s=math.fsum(values) / len(values),
        p50_s=percentile(values, 50),
        p95_s=percentile(values, 95),
        p99_s=percentile(values, 99),
        image_mean_s=math.fsum(values) / count_images(batches),
        image_p50_s=percentile(by_image, 50),
        image_p95_s=percentile(by_image, 95),
        image_p99_s=percentile(by_image, 99),
        share=math.fsum(values) / whole_s if whole_s else math.nan,
        device_mean_s=math.fsum(device) / len(batches) if device else None,
    )


def count_images(batches: Sequence[BatchSample]) -> int:
    """Images in all batches together."""
    return sum(batch.size for batch in batches)


def find_typical_batch(batches: Sequence[BatchSample]) -> BatchSample | None:
    """The batch nearest the median total among those of the most frequent size."""
    if not batches:
        return None
    size = Counter(batch.size for batch in batches).most_common(1)[0][0]
    alike = [batch for batch in batches if batch.size == size]
    median_s = percentile([batch.total_s for batch in alike], 50)
    return min(alike, key=lambda batch: abs(batch.total_s - median_s))


def summarise_buckets(functions: Sequence[FunctionSample]) -> list[BucketRow]:
    """One row per bucket by own time, the largest first."""
    whole_s = math.fsum(sample.own_s for sample in functions)
    rows = []
    for bucket in dict.fromkeys(sample.bucket for sample in functions):
        samples = [sample for sample in functions if sample.bucket == bucket]
        own_s = math.fsum(sample.own_s for sample in samples)
        calls = sum(sample.calls for sample in samples)
        rows.append(
            BucketRow(bucket, calls, own_s, own_s / whole_s if whole_s else math.nan)
        )
    return sorted(rows, key=lambda row: -row.own_s)


def find_hot_functions(
    functions: Sequence[FunctionSample], count: int
) -> list[FunctionSample]:
    """The functions with the largest cumulative times."""
    return sorted(functions, key=lambda sample: -sample.cumulative_s)[:count]


def find_busy_functions(
    functions: Sequence[FunctionSample], count: int
) -> list[FunctionSample]:
    """The functions with the largest own times."""
    return sorted(functions, key=lambda sample: -sample.own_s)[:count]


def group_lines(lines: Sequence[LineSample]) -> list[list[LineSample]]:
    """The lines of each function that ran, the slowest function first."""
    groups: dict[tuple[str, str], list[LineSample]] = {}
    for sample in lines:
        groups.setdefault((sample.file, sample.function), []).append(sample)
    ran = [group for group in groups.values() if any(line.hits for line in group)]
    return sorted(ran, key=lambda group: -math.fsum(line.time_s for line in group))


def find_hot_lines(group: Sequence[LineSample]) -> list[LineSample]:
    """One function's lines that matter, in their order in the source."""
    least_s = COLD_SHARE * math.fsum(line.time_s for line in group)
    return [line for line in group if line.hits and line.time_s >= least_s]
