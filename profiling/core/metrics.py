"""The metrics of a window, computed from its raw figures.

A metric that is added to `METRICS` is in every summary and CSV, and any table or chart may name it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from offpath.profiling.core.limits import DECODE_RATE

OK = "replies_200"
# Replies by HTTP status are `replies_<status>`; requests without a reply are `replies_none`.
REPLIES = "^replies_.*$"
CPU = "^cpu_s\\..*$"
RSS, PSS = "^rss_bytes\\..*$", "^pss_bytes\\..*$"


@dataclass(frozen=True)
class Metric:
    """A figure of a window; `expression` is over columns with the names of the raw metrics."""

    name: str
    unit: str
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
    Metric("rate", "1/s", "req/s", pl.col(OK) / pl.col("elapsed_s")),
    Metric("images_per_s", "1/s", "images/s", pl.col("images") / pl.col("elapsed_s")),
    Metric("replies", "", "replies", replies()),
    Metric("failed", "", "failed", replies() - pl.col(OK)),
    # Share of what the cores allow, see `limits.py`.
    Metric("decode_percent", "%", "% decode", 100 * pl.col("rate") / pl.col(DECODE_RATE)),
    Metric("cpu_ms.frontend", "ms", "front end", per_reply_ms("(frontend|nginx)")),
    Metric("cpu_ms.nginx", "ms", "door", per_reply_ms("nginx")),
    Metric("cpu_ms.workers", "ms", "workers", per_reply_ms("workers")),
    Metric("cpu_ms.generator", "ms", "load", per_reply_ms("generator")),
    Metric(
        "cpu_ms",
        "ms",
        "CPU",
        1e3 * (total(CPU) - pl.col("cpu_s.other")) / replies(),
    ),
    Metric("rss_mb", "MB", "RSS MB", total(RSS) / 1e6),
    Metric("pss_mb", "MB", "PSS MB", total(PSS) / 1e6),
    Metric("gpu_percent", "%", "GPU %", 100 * pl.col("gpu.utilisation")),
    Metric("jpeg_percent", "%", "JPEG engine %", 100 * pl.col("gpu.jpeg_utilisation")),
    Metric("gpu_mb", "MB", "GPU MB", pl.col("gpu.memory_bytes") / 1e6),
)
