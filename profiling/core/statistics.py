"""Statistics over a run's raw rows; each of them is defined only here.

METRICS are the figures of a window (one variant, cell and round), computed from its raw figures. A
metric that is added there is in every summary, and any table or chart may name it. Over the rounds
a figure has a median, a lowest and a highest value. Latency percentiles are those of all rounds'
requests together.

The variant `limit:decode` is decode + resize alone, and `limit:forward` the model alone in eager
fp32. Each has `images` and `elapsed_s`. An engine that is faster than eager PyTorch may exceed the
second limit.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import Any

import polars as pl

from offpath.profiling.core.run import Cell, Run

# The open loop's rate; the column `rate` is that of the good replies.
DUE = "due_per_s"
KEY_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("variant", "workload"), pl.String),
    **dict.fromkeys(("clients", "batch_size"), pl.Int64),
    DUE: pl.Float64,
}
KEYS = list(KEY_SCHEMA)
PERCENTILES: tuple[float, ...] = (50, 90, 95, 99, 99.9)
LATENCY = "latency_ms"
LIMIT = "limit:"
DECODE, FORWARD = f"{LIMIT}decode", f"{LIMIT}forward"
# Column of `derive`: images per second of decoding alone.
DECODE_RATE = "decode_limit"
OK = "replies_200"
# Replies by HTTP status are `replies_<status>`; requests without a reply are `replies_none`.
REPLIES = "^replies_.*$"
CPU = "^cpu_s\\..*$"
RSS, PSS = "^rss_bytes\\..*$", "^pss_bytes\\..*$"


def is_limit(variant: str) -> bool:
    return variant.startswith(LIMIT)


class Limits:
    """The limits of a run in images per second, each the median of its rounds."""

    def __init__(self, windows: pl.DataFrame) -> None:
        self._rates: dict[tuple[str, str], float] = {}
        if "images" in windows.columns:
            rate = (pl.col("images") / pl.col("elapsed_s")).median().alias("rate")
            limits = windows.filter(pl.col("variant").is_in([DECODE, FORWARD]))
            rates = limits.group_by("variant", "workload").agg(rate)
            self._rates = {(variant, workload): rate for variant, workload, rate in rates.rows()}

    def decode(self, workload: str) -> float | None:
        return self._rates.get((DECODE, workload))

    def forward(self) -> float | None:
        return self._rates.get((FORWARD, ""))

    def both(self, workload: str) -> float | None:
        decode, forward = self.decode(workload), self.forward()
        return 1 / (1 / decode + 1 / forward) if decode and forward else None

    def drawn(self, workload: str) -> tuple[float, str] | None:
        """Returns images per second and name of a chart's line; None where no limit was measured.

        It is decoding alone. Where the forward is most of the work, that line would shrink all bars
        to nothing. There it is both together.
        """
        decode, both = self.decode(workload), self.both(workload)
        if not decode:
            return None
        if both and both < decode / 2:
            return both, "decode + eager forward"
        return decode, "decode alone"


@dataclass(frozen=True)
class Metric:
    """A figure of a window; `expression` is over columns with the names of the raw metrics."""

    name: str
    title: str
    expression: pl.Expr


def total(pattern: str) -> pl.Expr:
    """Returns the sum of the raw metrics that a pattern names; null without any of them."""
    columns = pl.col(pattern)
    return pl.when(pl.any_horizontal(columns.is_not_null())).then(pl.sum_horizontal(columns))


def replies() -> pl.Expr:
    return total(REPLIES)


def per_reply_ms(group: str) -> pl.Expr:
    """Returns CPU milliseconds per reply of the groups of processes that a pattern names."""
    return 1e3 * total(f"^cpu_s\\.{group}$") / replies()


METRICS: tuple[Metric, ...] = (
    Metric("rate", "req/s", pl.col(OK) / pl.col("elapsed_s")),
    Metric("images_per_s", "images/s", pl.col("images") / pl.col("elapsed_s")),
    Metric("replies", "replies", replies()),
    Metric("failed", "failed", replies() - pl.col(OK)),
    # Share of what the cores allow.
    Metric("decode_percent", "% decode", 100 * pl.col("rate") / pl.col(DECODE_RATE)),
    Metric("cpu_ms.frontend", "front end", per_reply_ms("(frontend|nginx)")),
    Metric("cpu_ms.nginx", "door", per_reply_ms("nginx")),
    Metric("cpu_ms.workers", "workers", per_reply_ms("workers")),
    Metric("cpu_ms.generator", "load", per_reply_ms("generator")),
    Metric("load_cores", "load cores", total("^cpu_s\\.generator$") / pl.col("elapsed_s")),
    Metric("cpu_ms", "CPU", 1e3 * (total(CPU) - pl.col("cpu_s.other")) / replies()),
    Metric("rss_mb", "RSS MB", total(RSS) / 1e6),
    Metric("pss_mb", "PSS MB", total(PSS) / 1e6),
    Metric("gpu_percent", "GPU %", 100 * pl.col("gpu.utilisation")),
    Metric("jpeg_percent", "JPEG engine %", 100 * pl.col("gpu.jpeg_utilisation")),
    Metric("gpu_mb", "GPU MB", pl.col("gpu.memory_bytes") / 1e6),
)


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
    fields = {name: "rate" if name == DUE else name for name in schema}
    columns = {name: [getattr(row, field) for row in run.rows] for name, field in fields.items()}
    return pl.DataFrame(columns, schema=schema)


def derive(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns one row per window, one column per metric: raw, limits, then METRICS."""
    single = frame.filter(pl.col("value").is_not_null())
    if single.is_empty():
        return pl.DataFrame(schema={"round": pl.Int64, **KEY_SCHEMA})
    wide = single.pivot(on="metric", index=["round", *KEYS], values="value")
    limits = Limits(wide)
    rates = {workload: limits.decode(workload) for workload in wide["workload"].unique()}
    rate = pl.col("workload").replace_strict(rates, return_dtype=pl.Float64)
    wide = wide.with_columns(rate.alias(DECODE_RATE))
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
    return (variant, cell.workload, cell.clients, cell.batch_size, cell.rate)


def match(variant: str, cell: Cell) -> pl.Expr:
    return (
        (pl.col("variant") == variant)
        & (pl.col("workload") == cell.workload)
        & (pl.col("clients") == cell.clients)
        & (pl.col("batch_size") == cell.batch_size)
        & (pl.col(DUE) == cell.rate)
    )
