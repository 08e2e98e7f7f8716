"""What a profile's metrics are called, and how a handler's time is read from them part by part.

    batch_ms           `handle`, from call to return: a value a batch, as the next two
    stage_ms.NAME      of which in one stage; `stage_ms.other` is what no stage covers
    device_ms.NAME     of which on the accelerator, by its own clock
    bucket_ms.NAME     own time of the functions of one kind, of all batches together
    account_ms.NAME    one part of a client's mean latency in a server

A handler's batches are all of one size, that of its cell. Parts are read in milliseconds an image,
of an account in milliseconds a request, and add up to their total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.profilers.samples import BatchSample, FunctionSample

BATCH = "batch_ms"
STAGE, DEVICE, BUCKET, ACCOUNT = "stage_ms", "device_ms", "bucket_ms", "account_ms"
OTHER, TOTAL = "other", "total"
MEAN = ".mean"


def list_batches(samples: Sequence[BatchSample]) -> Figures:
    """The metrics of some batches; a stage that a batch lacks took nothing of it."""
    figures: dict[str, list[float]] = {BATCH: [1e3 * s.total_s for s in samples]}
    for prefix, seconds in (
        (STAGE, [sample.stages_s for sample in samples]),
        (DEVICE, [sample.device_s for sample in samples]),
    ):
        for name in dict.fromkeys(name for one in seconds for name in one):
            figures[f"{prefix}.{name}"] = [1e3 * one.get(name, 0.0) for one in seconds]
    if any(sample.stages_s for sample in samples):
        # Negative where stages overlap, so that all still add up.
        left = [sample.total_s - sum(sample.stages_s.values()) for sample in samples]
        figures[f"{STAGE}.{OTHER}"] = [1e3 * seconds for seconds in left]
    return figures


def sum_buckets(functions: Sequence[FunctionSample]) -> Figures:
    """Own milliseconds by bucket, the largest first."""
    own_ms: dict[str, float] = defaultdict(float)
    for sample in functions:
        own_ms[sample.bucket] += 1e3 * sample.own_s
    largest = sorted(own_ms, key=lambda bucket: -own_ms[bucket])
    return {f"{BUCKET}.{bucket}": round(own_ms[bucket], 3) for bucket in largest}


def fill_gaps(run: Run) -> None:
    """Gives each round of a handler all of its stages: one that did not run took nothing."""
    for variant in run.variants:
        rows = [r for r in run.rows if r.variant == variant and r.values is not None]
        totals = [row for row in rows if row.metric == BATCH]
        names = {row.metric: row for row in rows}
        there = {(row.round, row.metric) for row in rows}
        run.rows += [
            replace(row, round=total.round, values=[0.0] * len(total.values or ()))
            for total in totals
            for metric, row in names.items()
            if (total.round, metric) not in there
        ]
    run.rows.sort(key=lambda row: row.round)


def find_cell(summary: Summary, variant: str) -> Cell:
    """Where a handler was measured; `Cell()` where it was not."""
    rows = (row.cell for row in summary.run.rows if row.variant == variant)
    return next((cell for cell in rows if cell != Cell()), Cell())


def count_batches(summary: Summary, variant: str) -> int:
    """How many were measured."""
    return len(summary.values(variant, find_cell(summary, variant), BATCH))


def count_images(summary: Summary, variant: str) -> int:
    """In all batches together."""
    return count_batches(summary, variant) * find_cell(summary, variant).batch_size


def read_parts(summary: Summary, variant: str, kind: str) -> dict[str, float]:
    """Milliseconds an image (a request of ACCOUNT) by part, in the order of the path.

    What took nothing in any batch is left out; a bucket's are in all where nothing was counted.
    """
    cell = find_cell(summary, variant)
    found = {
        metric.removeprefix(f"{kind}."): summary.value(variant, cell, metric) or 0.0
        for metric in summary.metrics(variant, cell)
        if metric.startswith(f"{kind}.")
    }
    if kind == BUCKET:
        images = count_images(summary, variant) or 1
        found = {name: ms / images for name, ms in found.items()}
    elif kind != ACCOUNT:
        found = {
            name.removesuffix(MEAN): ms / cell.batch_size
            for name, ms in found.items()
            if name.endswith(MEAN) and (ms or name == OTHER + MEAN)
        }
    other = {OTHER: found.pop(OTHER)} if OTHER in found else {}
    return {**found, **other}


def read_total(summary: Summary, variant: str, kind: str) -> float:
    """What the parts of a kind add up to."""
    cell = find_cell(summary, variant)
    if kind == ACCOUNT:
        return summary.value(variant, cell, LATENCY + MEAN) or 0.0
    if kind == BUCKET:
        return sum(read_parts(summary, variant, kind).values())
    return (summary.value(variant, cell, BATCH + MEAN) or 0.0) / (cell.batch_size or 1)


def find_typical_batch(
    summary: Summary, variant: str
) -> tuple[float, dict[str, float]]:
    """The batch nearest the median: its milliseconds in all and by stage."""
    cell = find_cell(summary, variant)
    totals = summary.values(variant, cell, BATCH)
    median = summary.value(variant, cell, f"{BATCH}.p50") or 0.0
    index = min(range(len(totals)), key=lambda n: abs(totals[n] - median))
    stages = {
        name: summary.values(variant, cell, f"{STAGE}.{name}")[index]
        for name in read_parts(summary, variant, STAGE)
    }
    return totals[index], stages
