"""The limits of the cores in a run: decoding alone, and decoding with the model's forward.

The variant `limit:decode` is decode + resize alone, and `limit:forward` the model alone in eager
fp32. Each has `images` and `elapsed_s`. An engine that is faster than eager PyTorch may exceed the
second limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

LIMIT = "limit:"
DECODE, FORWARD = f"{LIMIT}decode", f"{LIMIT}forward"
# Fact of a variant in runs of earlier versions, whose thin clients sent PIXELS.
CONTENT = "content"
# Column of `add_decode_limit`: images per second of decoding alone.
DECODE_RATE = "decode_limit"
PIXELS = "npy"


class DrawnLimit(NamedTuple):
    """The limit as a chart draws it: images per second, and the name of the work."""

    rate: float
    name: str


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

    def drawn(self, workload: str) -> DrawnLimit | None:
        """Returns the line for charts; None where no limit was measured.

        It is decoding alone. Where the forward is most of the work, that line would shrink all bars
        to nothing. There it is both together.
        """
        decode, both = self.decode(workload), self.both(workload)
        if not decode:
            return None
        if both and both < decode / 2:
            return DrawnLimit(both, "decode + eager forward")
        return DrawnLimit(decode, "decode alone")


def add_decode_limit(
    windows: pl.DataFrame, variants: Mapping[str, Mapping[str, Any]]
) -> pl.DataFrame:
    """Returns the windows with DECODE_RATE on their workload, null where clients send pixels."""
    limits = Limits(windows)
    rows = [
        (variant, workload, limits.decode(workload))
        for variant, workload in windows.select("variant", "workload").unique().rows()
        if not is_limit(variant) and variants.get(variant, {}).get(CONTENT) != PIXELS
    ]
    schema = {"variant": pl.String, "workload": pl.String, DECODE_RATE: pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return windows.join(table, on=["variant", "workload"], how="left")
