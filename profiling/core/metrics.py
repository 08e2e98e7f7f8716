"""What is computed of each window from its raw figures.

A metric added to `METRICS` is in every summary, CSV and JSON, and any table or chart may name it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from offpath.profiling.core.goodput import IN_TIME
from offpath.profiling.core.limits import DECODE_RATE, LIMIT_RATE

OK = "replies_200"
# Replies by HTTP status are `replies_<status>`, `replies_none` where there was none.
REPLIES = "^replies_.*$"
CPU = "^cpu_s\\..*$"
RSS, PSS = "^rss_bytes\\..*$", "^pss_bytes\\..*$"
# Of the workers and of what forks them, by kind of page.
TEAM_PSS, TEAM_UNIQUE = "^team_pss_bytes\\..*$", "^team_unique_bytes\\..*$"


@dataclass(frozen=True)
class Metric:
    """A figure of a window, computed from its raw ones.

    Attributes:
        expression: over columns named as the raw metrics.
        title: in words, for the head of a column and an axis.
    """

    name: str
    unit: str
    title: str
    expression: pl.Expr


def total(pattern: str) -> pl.Expr:
    """Sum of the raw metrics that a pattern names; null where a window has none of them."""
    columns = pl.col(pattern)
    return pl.when(pl.any_horizontal(columns.is_not_null())).then(
        pl.sum_horizontal(columns)
    )


def replies() -> pl.Expr:
    """All replies, whatever their status."""
    return total(REPLIES)


def per_reply_ms(group: str) -> pl.Expr:
    """CPU milliseconds a reply of one group of processes, or of all that a pattern names."""
    return 1e3 * total(f"^cpu_s\\.{group}$") / replies()


METRICS: tuple[Metric, ...] = (
    Metric("rate", "1/s", "req/s", pl.col(OK) / pl.col("elapsed_s")),
    # wrk's latencies are those of failures too.
    Metric(
        "goodput",
        "1/s",
        "in time/s",
        pl.min_horizontal(IN_TIME, OK) / pl.col("elapsed_s"),
    ),
    Metric("images_per_s", "1/s", "images/s", pl.col("images") / pl.col("elapsed_s")),
    Metric("replies", "", "replies", replies()),
    Metric("failed", "", "failed", replies() - pl.col(OK)),
    # Of what the cores allow; see `limits.py`.
    Metric(
        "decode_percent", "%", "% decode", 100 * pl.col("rate") / pl.col(DECODE_RATE)
    ),
    Metric("limit_percent", "%", "% limit", 100 * pl.col("rate") / pl.col(LIMIT_RATE)),
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
    Metric("team_pss_mb", "MB", "team PSS", total(TEAM_PSS) / 1e6),
    Metric("team_unique_mb", "MB", "team unique", total(TEAM_UNIQUE) / 1e6),
    Metric("first_ratio", "", "first / next", pl.col("first_ms") / pl.col("steady_ms")),
    Metric("gpu_percent", "%", "GPU %", 100 * pl.col("gpu.utilisation")),
    Metric("gpu_mb", "MB", "GPU MB", pl.col("gpu.memory_bytes") / 1e6),
)
