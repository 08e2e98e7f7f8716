"""What the cores allow: a run's variants `limit:...`, and how much of it a server reaches.

`limit:decode` is decode + resize alone, `limit:forward` the model alone in eager fp32, and
`limit:forward ENGINE` with an engine of ours; each says `images` and `elapsed_s`. A server can have
no more than decode and its own engine's forward together; one whose clients send pixels has no
decoding to do: the forward alone bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

LIMIT = "limit:"
DECODE, FORWARD = f"{LIMIT}decode", f"{LIMIT}forward"
# Facts of a server's variant: what its clients send, and the engine of its forward.
CONTENT, ENGINE = "content", "engine"
# Columns that `add_limits` adds: images a second by decoding alone, and by all the work there is.
DECODE_RATE, LIMIT_RATE = "decode_limit", "limit"
PIXELS = "npy"


class DrawnLimit(NamedTuple):
    """The limit as a chart draws it: images a second, and which work it is."""

    rate: float
    name: str


def is_limit(variant: str) -> bool:
    """Whether a variant is a limit of the cores, and no server."""
    return variant.startswith(LIMIT)


def name_forward(engine: str | None) -> str:
    """The variant that measures an engine's forward; None for eager fp32."""
    return FORWARD if engine is None else f"{FORWARD} {engine}"


class Limits:
    """The limits of a run in images a second, each the median of its rounds.

    Args:
        windows: a row a window, a column a metric.
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
        """Decoding alone."""
        return self._rates.get((DECODE, workload))

    def forward(self, engine: str | None) -> float | None:
        """An engine's forward alone; eager's where that engine was not measured."""
        own = self._rates.get((name_forward(engine), ""))
        return self._rates.get((FORWARD, "")) if own is None else own

    def both(self, workload: str, engine: str | None) -> float | None:
        """Decoding and forward, and nothing else."""
        decode, forward = self.decode(workload), self.forward(engine)
        return 1 / (1 / decode + 1 / forward) if decode and forward else None

    def engines(self) -> list[str | None]:
        """Those whose forward was measured; None is eager."""
        names = [name for name, _ in self._rates if name.startswith(FORWARD)]
        return [name.removeprefix(FORWARD).strip() or None for name in names]

    def drawn(self, workload: str) -> DrawnLimit | None:
        """The line in charts; None where no limit was measured.

        Decoding alone, which no engine changes; where the forward is most of the work that line
        would shrink all bars to nothing: there it is both together, by the quickest engine.
        """
        decode = self.decode(workload)
        if not decode:
            return None
        allowed = [self.both(workload, engine) or 0.0 for engine in self.engines()]
        both = max(allowed, default=0.0)
        if 0 < both < decode / 2:
            return DrawnLimit(both, "decode + forward")
        return DrawnLimit(decode, "decode alone")


def add_limits(
    windows: pl.DataFrame, variants: Mapping[str, Mapping[str, Any]]
) -> pl.DataFrame:
    """The windows with DECODE_RATE and LIMIT_RATE of each server on its workload.

    Args:
        variants: name -> its facts.
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
