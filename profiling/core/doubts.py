"""The reasons to doubt a run's figures, each with its cure; one list for every experiment."""

from __future__ import annotations

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import OK, Summary

# With more cores than this busy with something else, figures are noisy.
NOISY_CORES = 0.1
OTHER_CORES = "other_cores"
NOISY_SPREAD = 0.15
# With fewer good replies in a window, its percentiles are a handful of batches.
FEW_REPLIES = 100
# Metrics whose spread over the rounds is examined.
MAIN_METRICS = ("rate", "images_per_s")


def find_doubts(run: Run, few_replies: int = FEW_REPLIES) -> list[str]:
    """Lists noise, spread, few replies and failures of all variants and cells."""
    summary = Summary(run)
    doubts = [f"not run: {name}: {reason}" for name, reason in run.not_run.items()]
    doubts += [
        f"left out in round {failure.round + 1}: {failure.variant}: {failure.reason}"
        for failure in run.failures
    ]
    doubts += run.warnings
    for variant in run.variants:
        for cell in summary.cells():
            doubts += find_cell_doubts(summary, variant, cell, few_replies)
    return doubts


def find_cell_doubts(summary: Summary, variant: str, cell: Cell, few_replies: int) -> list[str]:
    where = f"{variant}, {cell.describe()}"
    doubts = []
    other = summary.spread(variant, cell, OTHER_CORES)
    if other is not None and other.median > NOISY_CORES:
        doubts.append(
            f"noise: {other.median:.2f} cores were busy with something else during {where};"
            " stop it and run again"
        )
    for metric in MAIN_METRICS:
        spread = summary.spread(variant, cell, metric)
        if spread and spread.high - spread.low > NOISY_SPREAD * spread.median:
            share = (spread.high - spread.low) / spread.median if spread.median else 1.0
            doubts.append(
                f"spread: the rounds of {where} differ by {100 * share:.0f} %; a quieter"
                " machine or a longer run narrows it"
            )
    good = summary.spread(variant, cell, OK)
    if good is not None and good.low < few_replies:
        doubts.append(
            f"few replies: a round of {where} had {good.low:.0f}, its percentiles say little;"
            " a longer run says more"
        )
    failures = summary.failures(variant, cell)
    if failures:
        said = ", ".join(f"{count} x {status}" for status, count in failures.items())
        doubts.append(f"failures: {where}: {said}")
    return doubts
