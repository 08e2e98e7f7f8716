"""Tables of the results of scripts/gpu.sh, and what its stand-in for a T4 needs.

python -m offpath.profiling.experiments.gpu_table write|docs|repeats|photographs PATH
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.stages import StageTimer
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, load_run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_workload

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Document -> the result files that it shows.
SHOWN = {
    "cuda.md": "tests.xml servers-55k.json servers-1200k.json splits.json splits-mps.json"
    " batches.json waiting.json engine-eager.json engine-compiled.json"
    " engine-onnxruntime.json engine-tensorrt.json folding.json memory.json".split(),
    "t4.md": ["t4.json"],
}
BLOCK = re.compile(r"(?<=<!-- scripts/gpu.sh --docs -->\n).*?(?=<!-- end -->)", re.S)
NOT_RUN = "**not run**"
METRICS = {
    "rate": "req/s",
    "latency_ms.p99": "p99 ms",
    "cpu_ms": "CPU ms",
    "gpu_percent": "GPU %",
    "jpeg_percent": "JPEG engine %",
    "gpu_mb": "GPU MB",
    "pss_mb": "PSS MB",
}
# Images per second of ResNet-50 in fp16 on a T4. An assumption: nobody here has measured one.
T4_RATE = 1100
BATCH_SIZE, BATCHES = 16, 50


def make_table(folder: Path, files: list[str]) -> str:
    """Returns a Markdown table of result files; for a missing file it says "not run"."""
    head = ["result", "variant", "images", "clients", *METRICS.values()]
    lines = [head, ["---"] * len(head)]
    for name in files:
        path, rows = folder / name, [[NOT_RUN]]
        if path.suffix == ".xml" and path.exists():
            found = re.findall(r'(tests|failures|errors|skipped)="(\d+)"', path.read_text())
            rows = [[", ".join(f"{count} {what}" for what, count in found[:4])]]
        elif path.exists():
            rows = list(list_rows(path))
        lines += [[path.stem, *row] for row in rows]
    padded = [line + [""] * (len(head) - len(line)) for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def list_rows(path: Path) -> Iterator[list[str]]:
    """Yields a row for each window of a comparison, and one for each server that did not run."""
    run = load_run(path)
    summary = Summary(run)
    windows = [(r.variant, r.cell) for r in run.rows if r.metric == "replies_200"]
    for variant, cell in dict.fromkeys(windows):
        shown = [show(summary, variant, cell, metric) for metric in METRICS]
        yield [variant, Path(cell.workload).name, str(cell.clients), *shown]
    for variant in sorted({*run.not_run, *(one.variant for one in run.failures)}):
        yield [variant, NOT_RUN]


def show(summary: Summary, variant: str, cell: Cell, metric: str) -> str:
    """Returns a median over the rounds; of memory the range, because it should not grow."""
    spread = summary.spread(variant, cell, metric)
    if spread is None:
        return ""
    if metric.endswith("_mb") and spread.low < spread.high:
        return f"{format_figure(spread.low)} to {format_figure(spread.high)}"
    return format_figure(spread.median)


def write_docs(folder: Path, docs: Path = DOCS) -> None:
    """Writes the tables into the documents, between the two comments."""
    for name, files in SHOWN.items():
        table, text = make_table(folder, files), (docs / name).read_text()
        (docs / name).write_text(BLOCK.sub(lambda _: table, text))


def count_repeats(model: str = "resnet50", device: str = "cuda") -> int:
    """Returns how often a model must run per batch so that a device is as slow as a T4."""
    under_test, where = load_model(model), torch.device(device)
    config, module = under_test.config, under_test.source.module.eval()
    engine = EagerEngine(module, config, where, "fp16" if device == "cuda" else "fp32")
    runner = BatchRunner(engine, config, where, BATCH_SIZE)
    runner.warm_up()
    start = time.perf_counter()
    for _ in range(BATCHES):
        runner.run(BATCH_SIZE, StageTimer())
    rate = BATCHES * BATCH_SIZE / (time.perf_counter() - start)
    return max(1, round(rate / T4_RATE))


def make_progressive(folder: Path, workload: str = "photos-55k") -> None:
    """Saves photographs as progressive JPEGs, which a GPU's JPEG engine does not take."""
    folder.mkdir(parents=True)
    for path in load_workload(workload).paths:
        with Image.open(path) as image:
            image.save(folder / path.name, quality="keep", progressive=True)


if __name__ == "__main__":
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "write":
        print(make_table(path, sum(SHOWN.values(), [])), end="")
    elif what == "docs":
        write_docs(path)
    elif what == "repeats":
        path.write_text(f"{count_repeats()}\n")
    else:
        make_progressive(path)
