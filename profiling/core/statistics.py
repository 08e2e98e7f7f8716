"""Statistics over a run's raw rows; each of them is defined only here.

`metrics.METRICS` are the figures of a window (one variant, cell and round). Over the rounds a
figure has a median, a lowest and a highest value. Latency percentiles are those of all rounds'
requests together.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from offpath.profiling.core.limits import DECODE_RATE, Limits, add_decode_limit
from offpath.profiling.core.metrics import METRICS, OK, REPLIES
from offpath.profiling.core.run import Cell, Run

KEY_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("variant", "workload"), pl.String),
    **dict.fromkeys(("clients", "batch_size"), pl.Int64),
}
KEYS = list(KEY_SCHEMA)
SUMMARY_SCHEMA: dict[str, Any] = {
    **KEY_SCHEMA,
    **dict.fromkeys(("metric", "unit"), pl.String),
    **dict.fromkeys(("median", "low", "high"), pl.Float64),
    "rounds": pl.Int64,
}
PERCENTILES: tuple[float, ...] = (50, 90, 95, 99, 99.9)
LATENCY = "latency_ms"


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    rounds: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile by linear interpolation between ranks; NaN without values."""
    quantile = pl.Series(values, dtype=pl.Float64).quantile(percent / 100, "linear")
    return math.nan if quantile is None else quantile


def to_frame(run: Run) -> pl.DataFrame:
    schema: dict[str, Any] = {
        "round": pl.Int64,
        **KEY_SCHEMA,
        **dict.fromkeys(("metric", "unit"), pl.String),
        "value": pl.Float64,
        "values": pl.List(pl.Float64),
    }
    columns = {name: [getattr(row, name) for row in run.rows] for name in schema}
    return pl.DataFrame(columns, schema=schema)


def derive(frame: pl.DataFrame, variants: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
    """Returns one row per window, one column per metric: raw, limits, then METRICS."""
    single = frame.filter(pl.col("value").is_not_null())
    if single.is_empty():
        return pl.DataFrame(schema={"round": pl.Int64, **KEY_SCHEMA})
    wide = single.pivot(on="metric", index=["round", *KEYS], values="value")
    wide = add_decode_limit(wide, variants)
    for metric in METRICS:
        # A run without the raw metrics has no such figure.
        with contextlib.suppress(pl.exceptions.PolarsError):
            wide = wide.with_columns(metric.expression.alias(metric.name))
    return wide


class Summary:
    """The figures of a run over its rounds; `frame` has all of them, one per row.

    Columns of `frame`: KEYS, metric, unit, median, low, high, rounds. `limits` are those of the
    cores.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        raw = to_frame(run)
        self._windows = derive(raw, run.variants)
        self.limits = Limits(self._windows)
        self._latencies = raw.filter(pl.col("values").is_not_null())
        self.frame = pl.concat([self._spreads(), self._of_lists()])
        self._index = {
            (
                row["variant"],
                row["workload"],
                row["clients"],
                row["batch_size"],
                row["metric"],
            ): (Spread(row["median"], row["low"], row["high"], row["rounds"]))
            for row in self.frame.iter_rows(named=True)
        }

    def spread(self, variant: str, cell: Cell, metric: str) -> Spread | None:
        """Returns a figure of one variant in one cell; None where it was not measured."""
        key = (variant, cell.workload, cell.clients, cell.batch_size, metric)
        return self._index.get(key)

    def value(self, variant: str, cell: Cell, metric: str) -> float | None:
        spread = self.spread(variant, cell, metric)
        return None if spread is None else spread.median

    def metrics(self, variant: str, cell: Cell) -> list[str]:
        where = (variant, cell.workload, cell.clients, cell.batch_size)
        return [key[4] for key in self._index if key[:4] == where]

    def values(self, variant: str, cell: Cell, metric: str = LATENCY) -> list[float]:
        """Returns one value per request, of all rounds together."""
        rows = self._latencies.filter(match(variant, cell) & (pl.col("metric") == metric))
        return [value for values in rows["values"] for value in values]

    def ratios(self, variant: str, baseline: str, cell: Cell, metric: str = "rate") -> list[float]:
        """Returns one ratio per round, in order: cores had nearly one speed within a round."""
        if metric not in self._windows.columns:
            return []
        mine, base = (
            self._windows.filter(match(name, cell)).select(["round", metric])
            for name in (variant, baseline)
        )
        both = mine.join(base, on="round", suffix="_base").sort("round")
        both = both.filter(pl.col(f"{metric}_base") > 0).drop_nulls()
        return [*(both[metric] / both[f"{metric}_base"])]

    def ratio(self, variant: str, baseline: str, cell: Cell, metric: str = "rate") -> float | None:
        ratios = self.ratios(variant, baseline, cell, metric)
        return statistics.median(ratios) if ratios else None

    def failures(self, variant: str, cell: Cell) -> dict[str, int]:
        rows = self._windows.filter(match(variant, cell))
        found = rows.select(pl.col(REPLIES).sum()).to_dicts()
        return {
            name.removeprefix("replies_"): round(count)
            for row in found
            for name, count in row.items()
            if name != OK and count
        }

    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(row.cell for row in self.run.rows if row.cell != Cell()))

    def _spreads(self) -> pl.DataFrame:
        metrics = [c for c in self._windows.columns if c not in ("round", *KEYS)]
        if not metrics:
            return pl.DataFrame(schema=SUMMARY_SCHEMA)
        long = self._windows.unpivot(
            on=metrics, index=KEYS, variable_name="metric", value_name="value"
        ).filter(pl.col("value").is_not_null())
        units = {row.metric: row.unit for row in self.run.rows}
        units[DECODE_RATE] = "1/s"
        units |= {metric.name: metric.unit for metric in METRICS}
        return aggregate(long, units)

    def _of_lists(self) -> pl.DataFrame:
        """Returns percentiles and mean of metrics with a value per request, over all rounds."""
        values = pl.col("values")
        computed = {
            **{f"p{p:g}": values.quantile(p / 100, "linear") for p in PERCENTILES},
            "mean": values.mean(),
        }
        groups = [*KEYS, "metric", "unit"]
        return (
            self._latencies.explode("values")
            .filter(values.is_not_null())
            .group_by(groups, maintain_order=True)
            .agg(pl.col("round").n_unique().alias("rounds"), **computed)
            .unpivot(
                on=list(computed),
                index=[*groups, "rounds"],
                variable_name="statistic",
                value_name="median",
            )
            .with_columns(
                pl.format("{}.{}", "metric", "statistic").alias("metric"),
                pl.col("median").alias("low"),
                pl.col("median").alias("high"),
            )
            .select(list(SUMMARY_SCHEMA))
            .cast(pl.Schema(SUMMARY_SCHEMA))
        )


def aggregate(long: pl.DataFrame, units: dict[str, str]) -> pl.DataFrame:
    value = pl.col("value")
    return (
        long.group_by([*KEYS, "metric"], maintain_order=True)
        .agg(
            value.median().alias("median"),
            value.min().alias("low"),
            value.max().alias("high"),
            value.len().alias("rounds"),
        )
        .with_columns(pl.col("metric").replace_strict(units, default="").alias("unit"))
        .select(list(SUMMARY_SCHEMA))
        .cast(pl.Schema(SUMMARY_SCHEMA))
    )


def match(variant: str, cell: Cell) -> pl.Expr:
    return (
        (pl.col("variant") == variant)
        & (pl.col("workload") == cell.workload)
        & (pl.col("clients") == cell.clients)
        & (pl.col("batch_size") == cell.batch_size)
    )
