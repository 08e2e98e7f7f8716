"""The figures of a profile: what its metrics are called, and how a total divides into parts.

    batch_ms           duration of a call of `handle`: one value per batch, like the next two
    stage_ms.NAME      the share of one stage; `stage_ms.other` is what no stage covers
    device_ms.NAME     the share on the accelerator, by its own clock
    kind_ms.NAME       own time of all functions of one package, over all batches
    account_ms.NAME    one part of a client's mean latency in a server

All batches of a handler have one size, that of its cell. Parts are read in milliseconds per image,
those of an account in milliseconds per request, and they add up to their total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.profilers.samples import BatchSample, FunctionSample

BATCH = "batch_ms"
STAGE, DEVICE, KIND, ACCOUNT = "stage_ms", "device_ms", "kind_ms", "account_ms"
OTHER, TOTAL = "other", "total"
MEAN = ".mean"


def list_batches(samples: Sequence[BatchSample]) -> Figures:
    """Returns the metrics of some batches. A stage that a batch lacks took no time in it."""
    figures: dict[str, list[float]] = {BATCH: [1e3 * s.total_s for s in samples]}
    for prefix, seconds in (
        (STAGE, [sample.stages_s for sample in samples]),
        (DEVICE, [sample.device_s for sample in samples]),
    ):
        for name in dict.fromkeys(name for one in seconds for name in one):
            figures[f"{prefix}.{name}"] = [1e3 * one.get(name, 0.0) for one in seconds]
    if any(sample.stages_s for sample in samples):
        # Negative where stages overlap, so that the sum still holds.
        left = [sample.total_s - sum(sample.stages_s.values()) for sample in samples]
        figures[f"{STAGE}.{OTHER}"] = [1e3 * seconds for seconds in left]
    return figures


def sum_kinds(functions: Sequence[FunctionSample]) -> Figures:
    own_ms: dict[str, float] = defaultdict(float)
    for sample in functions:
        own_ms[sample.kind] += 1e3 * sample.own_s
    return {f"{KIND}.{kind}": round(ms, 3) for kind, ms in own_ms.items()}


@dataclass(frozen=True)
class Profiled:
    """The figures of one handler or server; `baseline` is what it is compared with, "" for none."""

    summary: Summary
    name: str
    baseline: str = ""

    @cached_property
    def cell(self) -> Cell:
        """The cell in which it was measured, or `Cell()` if it was not."""
        rows = self.summary.run.rows
        cells = (row.cell for row in rows if row.variant == self.name)
        return next((cell for cell in cells if cell != Cell()), Cell())

    @property
    def batches(self) -> int:
        return len(self.values(BATCH))

    @property
    def images(self) -> int:
        return self.batches * self.cell.batch_size

    def value(self, metric: str) -> float | None:
        return self.summary.value(self.name, self.cell, metric)

    def values(self, metric: str) -> list[float]:
        """Returns one value per batch or request."""
        return self.summary.values(self.name, self.cell, metric)

    def parts(self, kind: str) -> dict[str, float]:
        """Returns milliseconds per image (ACCOUNT: per request) by part, in the path's order.

        Parts without any time are left out. Packages have no order: the largest is first.
        """
        found = {
            metric.removeprefix(f"{kind}."): self.value(metric) or 0.0
            for metric in self.summary.metrics(self.name, self.cell)
            if metric.startswith(f"{kind}.")
        }
        if kind == KIND:
            largest = sorted(found, key=lambda name: -found[name])
            found = {name: found[name] / self.images for name in largest}
        elif kind != ACCOUNT:
            found = {
                name.removesuffix(MEAN): ms / self.cell.batch_size
                for name, ms in found.items()
                if name.endswith(MEAN) and (ms or name == OTHER + MEAN)
            }
        other = {OTHER: found.pop(OTHER)} if OTHER in found else {}
        return {**found, **other}

    def total(self, kind: str) -> float:
        if kind == ACCOUNT:
            return self.value(LATENCY + MEAN) or 0.0
        if kind == KIND:
            return sum(self.parts(KIND).values())
        return (self.value(BATCH + MEAN) or 0.0) / (self.cell.batch_size or 1)

    def find_typical_batch(self) -> tuple[float, dict[str, float]]:
        """Returns the batch nearest the median: its milliseconds in total and by stage."""
        totals = self.values(BATCH)
        median = self.value(f"{BATCH}.p50") or 0.0
        index = min(range(len(totals)), key=lambda n: abs(totals[n] - median))
        stages = {name: self.values(f"{STAGE}.{name}")[index] for name in self.parts(STAGE)}
        return totals[index], stages


def read_profile(run: Run, baseline: str | None = None) -> list[Profiled]:
    """Returns the handlers that were measured. The default baseline is the first of several."""
    summary = Summary(run)
    names = [name for name in run.variants if Profiled(summary, name).batches]
    base = baseline if baseline in names else "".join(names[:1])
    is_alone = len(names) == 1
    return [Profiled(summary, name, "" if is_alone else base or "") for name in names]
