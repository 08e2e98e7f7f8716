"""Replies in time: what a run counts when it is read with a bound of latency.

The bound is no part of what was measured: any run with raw latencies may be read with any.
"""

from __future__ import annotations

import polars as pl

# The setting of a run that says how many milliseconds a reply may take.
BOUND = "bound_ms"
IN_TIME = "in_time_200"


def count_in_time(latencies: pl.DataFrame, bound_ms: float) -> pl.DataFrame:
    """A row a window: how many of its replies took at most so long.

    Args:
        latencies: rows whose `values` are milliseconds a request.
    """
    in_time = pl.col("values").list.eval(pl.element() <= bound_ms).list.sum()
    return latencies.with_columns(
        metric=pl.lit(IN_TIME),
        unit=pl.lit(""),
        value=in_time.cast(pl.Float64),
        values=pl.lit(None, pl.List(pl.Float64)),
    )
