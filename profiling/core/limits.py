"""The limits of the cores in a run, and the share of them that a server reaches.

The variant `limit:decode` is decode + resize alone, `limit:forward` the model alone in eager fp32,
and `limit:forward ENGINE` the model with an engine of ours. Each has `images` and `elapsed_s`. No
server can exceed decode and its own engine's forward together. A server whose clients send pixels
decodes nothing, so only the forward bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

LIMIT = "limit:"
DECODE, FORWARD = f"{LIMIT}decode", f"{LIMIT}forward"
# Facts of a server's variant: the content that its clients send, and the engine of its forward.
CONTENT, ENGINE = "content", "engine"
# Columns of `add_limits`: images per second of decoding alone, and of decoding and forward.
DECODE_RATE, LIMIT_RATE = "decode_limit", "limit"
PIXELS = "npy"


class DrawnLimit(NamedTuple):
    """The limit as a chart draws it: images per second, and the name of the work."""

    rate: float
    name: str


def is_limit(variant: str) -> bool:
    """Returns whether a variant is a limit of the cores instead of a server."""
    return variant.startswith(LIMIT)


def name_forward(engine: str | None) -> str:
    """Returns the variant that measures an engine's forward; None stands for eager fp32."""
    return FORWARD if engine is None else f"{FORWARD} {engine}"


class Limits:
    """The limits of a run in images per second, each the median of its rounds.

    Args:
        windows: one row per window, one column per metric.
    """

    def __init__(self, windows: pl.DataFrame) -> None:
        self._rates: dict[tuple[str, str], float] = {}
        if "images" in windows.columns:
            rate = (pl.col("images") / pl.col("elapsed_s")).median().alias("rate")
            limits = windows.filter(pl.col("variant").str.starts_with(LIMIT))
            keys = ("variant", "workload")
            rates = limits.group_by(*keys, maintain_order=True).agg(rate)
            for row in rates.to_dicts():
                self._rates[row["variant"], row["workload"]] = row["rate"]

    def decode(self, workload: str) -> float | None:
        """Returns the limit of decoding alone."""
        return self._rates.get((DECODE, workload))

    def forward(self, engine: str | None) -> float | None:
        """Returns the limit of an engine's forward; eager's where the engine was not measured."""
        own = self._rates.get((name_forward(engine), ""))
        return self._rates.get((FORWARD, "")) if own is None else own

    def both(self, workload: str, engine: str | None) -> float | None:
        """Returns the limit of decoding and forward together."""
        decode, forward = self.decode(workload), self.forward(engine)
        return 1 / (1 / decode + 1 / forward) if decode and forward else None

    def engines(self) -> list[str | None]:
        """Returns the engines whose forward was measured; None is eager."""
        names = [name for name, _ in self._rates if name.startswith(FORWARD)]
        return [name.removeprefix(FORWARD).strip() or None for name in names]

    def drawn(self, workload: str) -> DrawnLimit | None:
        """Returns the line for charts; None where no limit was measured.

        It is decoding alone, which no engine changes. Where the forward is most of the work, that
        line would shrink all bars to nothing. There it is both together, with the fastest engine.
        """
        decode = self.decode(workload)
        if not decode:
            return None
        allowed = [self.both(workload, engine) or 0.0 for engine in self.engines()]
        both = max(allowed, default=0.0)
        if 0 < both < decode / 2:
            return DrawnLimit(both, "decode + forward")
        return DrawnLimit(decode, "decode alone")


def add_limits(windows: pl.DataFrame, variants: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
    """Returns the windows with DECODE_RATE and LIMIT_RATE of each server on its workload.

    Args:
        variants: name -> facts.
    """
    limits = Limits(windows)
    if not limits.engines():
        return windows
    rows = []
    for variant, workload in windows.select("variant", "workload").unique().rows():
        facts = variants.get(variant, {})
        engine = facts.get(ENGINE)
        decode, both = limits.decode(workload), limits.both(workload, engine)
        if facts.get(CONTENT) == PIXELS:
            decode, both = None, limits.forward(engine)
        if workload and not is_limit(variant):
            rows.append((variant, workload, decode, both))
    schema = {
        **dict.fromkeys(("variant", "workload"), pl.String),
        **dict.fromkeys((DECODE_RATE, LIMIT_RATE), pl.Float64),
    }
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return windows.join(table, on=["variant", "workload"], how="left")
