"""Runs Triton's perf_analyzer against a server that speaks TorchServe's HTTP.

A candidate of `offpath bench calibrate`, not of the benchmark: its first failed reply ends the
run, and it knows TorchServe's and Triton's protocols alone. It posts multipart forms.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.generators.children import run_program
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher

PROGRAM = "perf_analyzer"
# A time-bound run measures at least three windows; all of them are taken, whatever their spread.
WINDOWS = 3
ANY_SPREAD = "1000000"


class PerfAnalyzerGenerator:
    """perf_analyzer with `--service-kind torchserve`."""

    name = PROGRAM

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `profiling.load.Generator`."""
        if shutil.which(PROGRAM) is None:
            raise ExpectedError(
                f"{PROGRAM} is not on the PATH: pip install 'tritonclient[perf_analyzer]', or see"
                " docs/benchmark.md for one that runs with an older glibc"
            )

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `profiling.load.Generator`."""
        self.check(plan.seconds, plan.rate)
        with tempfile.TemporaryDirectory() as folder:
            command = make_command(plan, Path(folder))
            watcher.on_window()
            cpu_s = run_program(command, watcher)
            return read_sample(Path(folder) / "out.json", cpu_s)


def make_command(plan: LoadPlan, folder: Path) -> list[str]:
    """Writes the list of inputs; returns the command."""
    inputs = [{"TORCHSERVE_INPUT": [str(path.resolve())]} for path in plan.paths]
    (folder / "data.json").write_text(json.dumps({"data": inputs}))
    url = urlsplit(plan.url)
    load = ["--concurrency-range", str(plan.clients)]
    if plan.rate is not None:
        load = ["--request-rate-range", str(plan.rate), "--max-threads"]
        load += [str(plan.clients), "--request-distribution", "poisson"]
    length = ["--request-count", str(plan.requests)]
    if plan.seconds is not None:
        window_ms = round(1000 * plan.seconds / WINDOWS)
        length = ["--measurement-interval", str(window_ms), "-r", str(WINDOWS)]
        length += ["--stability-percentage", ANY_SPREAD]
    return [
        *(PROGRAM, "--service-kind", "torchserve", "-u", url.netloc),
        *("-m", url.path.rpartition("/")[2]),
        *("--input-data", str(folder / "data.json")),
        *("--profile-export-file", str(folder / "out.json")),
        *load,
        *length,
    ]


def read_sample(path: Path, cpu_s: float) -> LoadSample:
    """Its raw values; in open loop it counts from the sending, not from the time that was due."""
    (experiment,) = json.loads(path.read_text())["experiments"]
    requests: list[dict[str, Any]] = experiment["requests"]
    bounds = experiment["window_boundaries"]
    latencies_ms = [
        (request["response_timestamps"][-1] - request["timestamp"]) / 1e6
        for request in requests
    ]
    elapsed_s = (max(bounds) - min(bounds)) / 1e9
    return LoadSample(elapsed_s, {"200": len(requests)}, latencies_ms, cpu_s)
