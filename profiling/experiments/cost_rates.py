"""Servers' rates out of a benchmark's result, for `offpath cost`."""

from __future__ import annotations

from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.limits import is_limit
from offpath.profiling.core.run import load_run
from offpath.profiling.core.statistics import Summary


def rates_of_result(path: Path, workload: str | None) -> dict[str, float]:
    """Median rates by server on one workload; a server that answered nothing has no price.

    Raises:
        ExpectedError: no such file or workload; several workloads and none chosen; no server
            answered.
    """
    summary = Summary(load_run(path, "compare"))
    measured = list(summary.run.workloads)
    if workload is None and len(measured) == 1:
        workload = measured[0]
    if workload not in measured:
        raise ExpectedError(
            f"workload {workload!r} of {str(path)!r}: expected --workload with one of"
            f" {', '.join(measured)}"
        )
    # With several numbers of clients: a server's best.
    rates = {
        variant: max(
            summary.value(variant, cell, "rate") or 0.0
            for cell in summary.cells()
            if cell.workload == workload
        )
        for variant in summary.run.variants
        if not is_limit(variant)
    }
    rates = {server: rate for server, rate in rates.items() if rate}
    if not rates:
        raise ExpectedError(
            f"{str(path)!r} has no good reply on {workload!r}: finish a round first"
        )
    return rates
