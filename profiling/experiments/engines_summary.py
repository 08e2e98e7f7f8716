"""Statistics over the raw values of `offpath bench engines`; pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from offpath.profiling.experiments.engines_result import (
    BASELINE,
    UNFOLDED,
    EnginesResult,
    Parity,
    Window,
)


class OfVariant(Protocol):
    """A row of a result that says what it belongs to."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def variant(self) -> str:
        """Engine and precision."""


AnyRow = TypeVar("AnyRow", bound=OfVariant)
# More than this share of the asked-for cores was busy with something else: noise.
NOISY_SHARE = 0.1
NOISY_SPREAD = 0.15


@dataclass(frozen=True)
class Spread:
    """Median and extremes over the rounds."""

    median: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """Width over the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True)
class EngineRow:
    """One variant of one model.

    Attributes:
        alone_ms: forward ms an image of one process with one thread, by batch size.
        wide_ms: of one process with a thread on each core; empty where there is one core.
        rates: images a second of all processes at the same time, one thread each, by batch size.
        ratios: that rate over the baseline's of the same round, by batch size.
        load_s, import_s: see `Load`; medians.
        rss_bytes, pss_bytes: of one process; PSS is the mean of those that ran together.
        artefact_bytes, build_s: None for what loads the model itself.
        parity: None for the baseline, which is the reference.
    """

    model: str
    variant: str
    alone_ms: dict[int, Spread]
    wide_ms: dict[int, Spread]
    rates: dict[int, Spread]
    ratios: dict[int, Spread]
    load_s: float
    import_s: float
    rss_bytes: float
    pss_bytes: float
    artefact_bytes: int | None
    build_s: float | None
    parity: Parity | None

    @property
    def largest_batch(self) -> int:
        """The batch size that ratios are quoted for."""
        return max(self.ratios)

    def holds(self, bound: float | None) -> bool:
        """Whether the handler's parity gate lets it pass."""
        if self.parity is None or bound is None:
            return True
        return not self.parity.gate_changes and self.parity.gate_move <= bound


def summarise_engines(result: EnginesResult) -> list[EngineRow]:
    """One row per model and variant that was measured, in the order of the run."""
    pairs = dict.fromkeys((window.model, window.variant) for window in result.windows)
    return [make_row(result, *pair) for pair in pairs]


def make_row(result: EnginesResult, model: str, variant: str) -> EngineRow:
    """Summarises the rounds of one variant."""
    windows = of_variant(result.windows, model, variant)
    loads = of_variant(result.loads, model, variant)
    artefacts = of_variant(result.artefacts, model, variant)
    parities = of_variant(result.parities, model, variant)
    processes = max(window.processes for window in windows)
    together = [window for window in windows if window.processes == processes]
    return EngineRow(
        model=model,
        variant=variant,
        alone_ms=spread_ms(w for w in windows if (w.processes, w.threads) == (1, 1)),
        wide_ms=spread_ms(w for w in windows if w.threads > 1),
        rates={
            size: spread([window.per_s for window in chosen])
            for size, chosen in by_batch_size(together).items()
        },
        ratios=compare(together, of_variant(result.windows, model, BASELINE)),
        load_s=statistics.median(load.load_s for load in loads),
        import_s=statistics.median(load.import_s for load in loads),
        rss_bytes=statistics.median(load.rss_bytes for load in loads),
        pss_bytes=statistics.median(load.pss_bytes / load.processes for load in loads),
        artefact_bytes=artefacts[-1].size_bytes if artefacts else None,
        build_s=artefacts[-1].build_s if artefacts else None,
        parity=parities[-1] if parities else None,
    )


def of_variant(rows: Iterable[AnyRow], model: str, variant: str) -> list[AnyRow]:
    """The rows of one variant."""
    return [row for row in rows if (row.model, row.variant) == (model, variant)]


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(statistics.median(values), min(values), max(values))


def by_batch_size(windows: Iterable[Window]) -> dict[int, list[Window]]:
    """Windows of each batch size, the smallest first."""
    chosen = list(windows)
    sizes = sorted({window.batch_size for window in chosen})
    return {size: [w for w in chosen if w.batch_size == size] for size in sizes}


def spread_ms(windows: Iterable[Window]) -> dict[int, Spread]:
    """Milliseconds an image by batch size."""
    return {
        size: spread([window.ms_per_image for window in chosen])
        for size, chosen in by_batch_size(windows).items()
    }


def compare(windows: Sequence[Window], base: Sequence[Window]) -> dict[int, Spread]:
    """Rates over the base's, by batch size; round by round, so that a drift cancels out."""
    rates = {make_key(window): window.per_s for window in base}
    ratios = {
        size: [w.per_s / rates[make_key(w)] for w in chosen if make_key(w) in rates]
        for size, chosen in by_batch_size(windows).items()
    }
    return {size: spread(values) for size, values in ratios.items() if values}


def make_key(window: Window) -> tuple[int, int, int, int]:
    """What two windows must have in common to be compared."""
    return window.round, window.batch_size, window.processes, window.threads


def measure_folding(result: EnginesResult, model: str) -> dict[int, Spread]:
    """The baseline's rate over its rate without folding, by batch size; empty without both."""
    processes = result.settings["processes"]
    folded, unfolded = (
        [w for w in of_variant(result.windows, model, name) if w.processes == processes]
        for name in (BASELINE, UNFOLDED)
    )
    return compare(folded, unfolded)


def find_best(rows: Iterable[EngineRow], bound: float | None) -> EngineRow | None:
    """The variant with the highest ratio among those within the parity bound."""
    fit = [row for row in rows if row.ratios and row.holds(bound)]
    return max(fit, key=lambda row: row.ratios[row.largest_batch].median, default=None)


def find_noise(result: EnginesResult) -> list[str]:
    """What makes the figures doubtful, each with its cure."""
    warnings = []
    for row in summarise_engines(result):
        where = f"{row.variant} of {row.model}"
        windows = of_variant(result.windows, row.model, row.variant)
        # With more threads an engine may leave cores idle by itself.
        narrow = [window for window in windows if window.threads == 1]
        lost = max((1 - sum(w.cpu_s) / sum(w.elapsed_s) for w in narrow), default=0.0)
        if lost > NOISY_SHARE:
            warnings.append(
                f"noise: {where} had {100 * lost:.0f} % less than its cores in a window;"
                " stop what else runs"
            )
        if any(rate.share > NOISY_SPREAD for rate in row.rates.values()):
            widest = max(rate.share for rate in row.rates.values())
            warnings.append(
                f"spread: the rounds of {where} differ by {100 * widest:.0f} %;"
                " more --rounds or longer --seconds narrow it"
            )
    return warnings
