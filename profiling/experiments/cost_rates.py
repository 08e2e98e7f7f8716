"""Servers' rates out of a benchmark's result, for `offpath cost`."""

from __future__ import annotations

from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.result import BENCH
from offpath.profiling.core.summary import summarise


def rates_of_result(path: Path, workload: str | None) -> dict[str, float]:
    """Median rates by server on one workload; a server that answered nothing has no price.

    Raises:
        ExpectedError: no such file or workload; several workloads and none chosen; no server
            answered.
    """
    result = BENCH.load(path)
    measured = list(result.workloads)
    if workload is None and len(measured) == 1:
        workload = measured[0]
    if workload not in measured:
        raise ExpectedError(
            f"workload {workload!r} of {str(path)!r}: expected --workload with one of"
            f" {', '.join(measured)}"
        )
    rows = [row for row in summarise(result, None) if row.workload == workload]
    rates = {row.server: row.rate for row in rows if row.rate > 0}
    if not rates:
        raise ExpectedError(
            f"{str(path)!r} has no good reply on {workload!r}: finish a round first"
        )
    return rates
