"""Rates to price from a saved run of `offpath bench` or `tune`, and whether a GPU was there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from offpath.handler.errors import WrongOption
from offpath.profiling.core.limits import is_limit
from offpath.profiling.core.run import load_run
from offpath.profiling.core.statistics import Summary

# What `load.window` writes of each window where the machine has a GPU.
GPU_ROWS = "gpu."


class MeasuredRates(NamedTuple):
    """Requests a second of one instance by server, and whether they were measured with a GPU."""

    rates: dict[str, float]
    on_gpu: bool


def read_rates(path: Path, workload: str | None) -> MeasuredRates:
    """A saved run's median rates by server on one workload, the best of several cells.

    A server that answered nothing has no price.

    Raises:
        WrongOption: no such file or workload; several workloads and none chosen; no server
            answered.
    """
    run = load_run(path)
    summary = Summary(run)
    measured = list(run.workloads)
    if workload is None and len(measured) == 1:
        workload = measured[0]
    if workload not in measured:
        raise WrongOption(
            f"workload {workload!r} of {str(path)!r}: expected --workload with one of"
            f" {', '.join(measured)}"
        )
    cells = [cell for cell in summary.cells() if cell.workload == workload]
    rates = {
        name: max((summary.value(name, c, "rate") or 0.0 for c in cells), default=0.0)
        for name in run.variants
        if not is_limit(name)
    }
    rates = {server: rate for server, rate in rates.items() if rate}
    if not rates:
        raise WrongOption(
            f"{str(path)!r} has no good reply on {workload!r}: finish a round first"
        )
    return MeasuredRates(
        rates, any(row.metric.startswith(GPU_ROWS) for row in run.rows)
    )
