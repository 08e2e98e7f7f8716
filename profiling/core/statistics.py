"""Statistics over a run's raw rows; each of them is defined only here.

`window_metrics.METRICS` are the figures of a window (one variant, cell and round). Over the rounds a
figure has a median, a lowest and a highest value. Latency percentiles are those of all rounds'
requests together.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import Any

import polars as pl

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.window_metrics import METRICS, OK, REPLIES, Limits, add_decode_limit

KEY_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("variant", "workload"), pl.String),
    **dict.fromkeys(("clients", "batch_size"), pl.Int64),
}
KEYS = list(KEY_SCHEMA)
PERCENTILES: tuple[float, ...] = (50, 90, 95, 99, 99.9)
LATENCY = "latency_ms"


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    rounds: int


def to_frame(run: Run) -> pl.DataFrame:
    schema: dict[str, Any] = {
        "round": pl.Int64,
        **KEY_SCHEMA,
        "metric": pl.String,
        "value": pl.Float64,
        "values": pl.List(pl.Float64),
    }
    columns = {name: [getattr(row, name) for row in run.rows] for name in schema}
    return pl.DataFrame(columns, schema=schema)


def derive(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns one row per window, one column per metric: raw, limits, then METRICS."""
    single = frame.filter(pl.col("value").is_not_null())
    if single.is_empty():
        return pl.DataFrame(schema={"round": pl.Int64, **KEY_SCHEMA})
    wide = single.pivot(on="metric", index=["round", *KEYS], values="value")
    wide = add_decode_limit(wide)
    for metric in METRICS:
        # A run without the raw metrics has no such figure.
        with contextlib.suppress(pl.exceptions.PolarsError):
            wide = wide.with_columns(metric.expression.alias(metric.name))
    return wide


class Summary:
    """The figures of a run over its rounds; `limits` are those of the cores."""

    def __init__(self, run: Run) -> None:
        self.run = run
        raw = to_frame(run)
        self._windows = derive(raw)
        self.limits = Limits(self._windows)
        self._latencies = raw.filter(pl.col("values").is_not_null())
        # Variant and cell -> metric -> its figures.
        self._spreads: dict[tuple[object, ...], dict[str, Spread]] = {}
        self._add_spreads()
        self._add_percentiles()

    def spread(self, variant: str, cell: Cell, metric: str) -> Spread | None:
        """Returns a figure of one variant in one cell; None where it was not measured."""
        return self._spreads.get(key_of(variant, cell), {}).get(metric)

    def value(self, variant: str, cell: Cell, metric: str) -> float | None:
        spread = self.spread(variant, cell, metric)
        return None if spread is None else spread.median

    def metrics(self, variant: str, cell: Cell) -> list[str]:
        return list(self._spreads.get(key_of(variant, cell), {}))

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

    def _add_spreads(self) -> None:
        metrics = [name for name in self._windows.columns if name not in ("round", *KEYS)]
        for key, windows in self._windows.group_by(KEYS):
            found: dict[str, Any] = {name: windows[name].drop_nulls() for name in metrics}
            self._spreads[key] = {
                name: Spread(rounds.median(), rounds.min(), rounds.max(), len(rounds))
                for name, rounds in found.items()
                if len(rounds)
            }

    def _add_percentiles(self) -> None:
        """Adds percentiles and mean of metrics with a value per request, over all rounds."""
        groups = self._latencies.group_by([*KEYS, "metric"], maintain_order=True)
        for (*key, metric), rows in groups:
            values, rounds = rows["values"].explode().drop_nulls(), rows["round"].n_unique()
            figures: dict[str, Any] = {
                f"p{p:g}": values.quantile(p / 100, "linear") for p in PERCENTILES
            }
            for name, figure in {**figures, "mean": values.mean()}.items():
                if figure is not None:
                    spread = Spread(figure, figure, figure, rounds)
                    self._spreads.setdefault(tuple(key), {})[f"{metric}.{name}"] = spread


def key_of(variant: str, cell: Cell) -> tuple[object, ...]:
    return (variant, cell.workload, cell.clients, cell.batch_size)


def match(variant: str, cell: Cell) -> pl.Expr:
    return (
        (pl.col("variant") == variant)
        & (pl.col("workload") == cell.workload)
        & (pl.col("clients") == cell.clients)
        & (pl.col("batch_size") == cell.batch_size)
    )
