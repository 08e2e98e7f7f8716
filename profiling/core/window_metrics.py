"""The metrics of a window, computed from its raw figures, and the limits of the cores.

A metric that is added to `METRICS` is in every summary, and any table or chart may name it.

The variant `limit:decode` is decode + resize alone, and `limit:forward` the model alone in eager
fp32. Each has `images` and `elapsed_s`. An engine that is faster than eager PyTorch may exceed the
second limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

LIMIT = "limit:"
DECODE, FORWARD = f"{LIMIT}decode", f"{LIMIT}forward"
# Column of `add_decode_limit`: images per second of decoding alone.
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


def add_decode_limit(windows: pl.DataFrame) -> pl.DataFrame:
    """Returns the windows with DECODE_RATE of their workload."""
    limits = Limits(windows)
    rates = {workload: limits.decode(workload) for workload in windows["workload"].unique()}
    rate = pl.col("workload").replace_strict(rates, return_dtype=pl.Float64)
    return windows.with_columns(rate.alias(DECODE_RATE))


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
    Metric("cpu_ms", "CPU", 1e3 * (total(CPU) - pl.col("cpu_s.other")) / replies()),
    Metric("rss_mb", "RSS MB", total(RSS) / 1e6),
    Metric("pss_mb", "PSS MB", total(PSS) / 1e6),
    Metric("gpu_percent", "GPU %", 100 * pl.col("gpu.utilisation")),
    Metric("jpeg_percent", "JPEG engine %", 100 * pl.col("gpu.jpeg_utilisation")),
    Metric("gpu_mb", "GPU MB", pl.col("gpu.memory_bytes") / 1e6),
)
