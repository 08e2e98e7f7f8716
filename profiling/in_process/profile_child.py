"""The process that one handler lives in while it is profiled: `python -m profiling.profile_child`.

Orders: `load`, `run`, `finish` (see child_process.py); stdout and stderr are the handler's.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.child_process import obey
from offpath.profiling.in_process.cprofile import CallCollector
from offpath.profiling.in_process.drive import Collector, Driver
from offpath.profiling.in_process.flame import FlameCollector
from offpath.profiling.in_process.lines import LineCollector, choose_functions
from offpath.profiling.in_process.loaded_handler import LoadedHandler, load_handler
from offpath.profiling.in_process.source_paths import make_shortener
from offpath.profiling.in_process.stages import StageRecorder
from offpath.profiling.in_process.timing_overhead import OverheadCollector
from offpath.profiling.in_process.torch_trace import save_trace

Answer = dict[str, Any]


class ProfiledHandler:
    """One handler from its load to its findings."""

    def load(self, order: Mapping[str, Any]) -> Answer:
        """Loads the handler and warms it up; nothing is watched yet."""
        self._order = order
        spec = order["spec"]
        self._doing = "initialize"
        handler = load_handler(spec)
        self._doing = "handle"
        pictures = [Path(path).read_bytes() for path in order["pictures"]]
        self._driver = Driver(handler, pictures, spec["batch_size"], order["seed"])
        for _ in self._driver.run(order["warm_up_batches"], Unwatched()):
            pass
        if self._driver.refused:
            raise ExpectedError(
                f"the handler refused {self._driver.refused} photographs of the warm-up;"
                " expected pictures that it can decode"
            )
        self._collector = make_collector(order, handler)
        return {}

    def run(self, order: Mapping[str, Any]) -> Answer:
        """Handles some batches."""
        batches = self._driver.run(order["batches"], self._collector)
        return {"batches": [asdict(sample) for sample in batches]}

    def finish(self, _: Mapping[str, Any]) -> Answer:
        """Saves files, and answers what the collector found."""
        order, collector = self._order, self._collector
        spec = order["spec"]
        shorten = make_shortener(spec["folder"])
        findings: Answer = {"refused": self._driver.refused}
        path = Path(order["file"]) if order["file"] else None
        if isinstance(collector, CallCollector):
            findings["functions"] = [
                asdict(sample) for sample in collector.make_samples(shorten)
            ]
            if path:
                collector.save(path)
        elif isinstance(collector, LineCollector):
            samples = collector.make_samples(shorten)
            findings["lines"] = [asdict(sample) for sample in samples]
        elif isinstance(collector, FlameCollector) and path:
            collector.save(path, f"{spec['name']}: handle")
        elif isinstance(collector, StageRecorder) and path:
            save_trace(self._driver, collector, path)
        return findings

    def explain(self, error: Exception) -> Answer:
        """An answer for what the handler, or we, raised."""
        if isinstance(error, ExpectedError):
            return {"error": str(error), "traceback": ""}
        text = "".join(traceback.format_exception(error))
        raised = f"{type(error).__name__}: {error}"
        return {"error": f"raised in {self._doing}: {raised}", "traceback": text}


class Unwatched:
    """A collector that collects nothing, for the warm-up."""

    def watching(self) -> Any:
        """See `Collector`."""
        from contextlib import nullcontext

        return nullcontext()

    def take_batch(self) -> tuple[dict[str, float], dict[str, float]]:
        """See `Collector`."""
        return {}, {}


def make_collector(order: Mapping[str, Any], handler: LoadedHandler) -> Collector:
    """The collector of a kind of profile."""
    kind = order["kind"]
    if kind == "cprofile":
        return CallCollector()
    if kind == "lines":
        return LineCollector(choose_functions(handler, order["functions"]))
    if kind == "flame":
        return FlameCollector(order["interval_s"])
    if kind == "overhead":
        return OverheadCollector(handler)
    return StageRecorder(handler)


if __name__ == "__main__":
    obey(ProfiledHandler())
