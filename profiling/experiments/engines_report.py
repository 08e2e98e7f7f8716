"""What `bench engines` shows: speed, start and memory, answers with the parity gate's verdict."""

from __future__ import annotations

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.experiments.engines import BASELINE
from offpath.profiling.report.columns import (
    Column,
    TableSpec,
    View,
    show_range,
    show_ratio,
)
from offpath.profiling.report.declared import Part, Report, make_document
from offpath.profiling.report.document import Document
from offpath.profiling.report.specs import BarSpec

RATE = "images_per_s"


def show_verdict(view: View, variant: str, cell: Cell) -> str:
    """Whether the handler's parity gate lets a variant pass at its default bound."""
    move = view.summary.value(variant, cell, "gate.largest_move")
    bound = view.run.settings["parity_bound"]
    if move is None or bound is None:
        return ""
    changes = view.summary.value(variant, cell, "gate.top1_changes")
    return "refuses" if changes or move > bound else "passes"


def show_batch(_: View, __: str, cell: Cell) -> str:
    """Its size; the cell of a start has none."""
    return str(cell.batch_size or "")


BATCH = Column(title="batch", show=show_batch)
SPEED = TableSpec(
    "images a second of all processes together",
    (
        BATCH,
        Column(RATE),
        Column(title="range", show=show_range(RATE)),
        Column(title="x", show=show_ratio(RATE)),
        Column("forward_ms", "ms an image"),
    ),
)
# Of results of old: one process alone, and one with a thread on each core.
ALONE = TableSpec(
    "ms an image, one process alone",
    (Column("alone_ms", "1 thread"), Column("wide_ms", "all threads")),
    rows_by=("batch_size",),
)
START = TableSpec(
    "start, memory of a process, artefact",
    (
        Column("load_s", "load s", decimals=2),
        Column("import_s", "import s", decimals=2),
        Column("rss_mb", decimals=0),
        Column("pss_mb", decimals=0),
        Column("artefact_bytes", "file MB", scale=1e-6),
        Column("build_s", "build s", decimals=0),
    ),
)
ANSWERS = TableSpec(
    f"largest move of a probability, changed best classes, beside {BASELINE}",
    (
        Column("all.pictures", "photographs", decimals=0),
        Column("all.largest_move", "move", decimals=5),
        Column("all.top1_changes", "changed", decimals=0),
        Column("gate.largest_move", "gate: move", decimals=5),
        Column("gate.top1_changes", "changed", decimals=0),
        Column(title="verdict", show=show_verdict),
    ),
)
BARS = BarSpec(RATE, "images a second", f"images/s (x {BASELINE})")
REPORT = Report(
    title="Engines side by side",
    parts=(
        Part("{workload}: speed", (BARS,), (SPEED, ALONE)),
        Part(
            "{workload}: start and answers",
            tables=(START, ANSWERS),
            note="Load: from the artefact to the first answer. PSS: with all processes running."
            " Gate: on the photographs that an archive's parity gate compares; it refuses what"
            " moves or changes more than it allows by default.",
        ),
    ),
    headline=(BARS,),
)


def document_of(run: Run, _: str | None) -> Document:
    """Everything that is shown of a run; ratios are to eager fp32 whatever is asked for."""
    return make_document(run, REPORT, BASELINE, find_doubts(run))
