"""The process that one handler lives in while it is profiled; see `handler_process.py`.

Its stdout and stderr are the handler's.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.child_process import obey
from offpath.profiling.profilers.cprofile import CallCollector
from offpath.profiling.profilers.drive import Collector, Driver
from offpath.profiling.profilers.flame import FlameCollector
from offpath.profiling.profilers.handler_process import CPROFILE, FLAME, LINES, Watch
from offpath.profiling.profilers.handlers import HandlerSpec
from offpath.profiling.profilers.lines import LineCollector, choose_functions
from offpath.profiling.profilers.loaded_handler import LoadedHandler, load_handler
from offpath.profiling.profilers.source_paths import make_shortener
from offpath.profiling.profilers.stages import StageRecorder
from offpath.profiling.profilers.torch_trace import save_trace

Answer = dict[str, Any]


class ProfiledHandler:
    """One handler from its load to its findings."""

    def load(self, order: Mapping[str, Any]) -> Answer:
        """Loads the handler and warms it up; nothing is watched yet."""
        self._spec = msgspec.convert(order["spec"], HandlerSpec)
        self._file = Path(order["file"]) if order["file"] else None
        self._doing = "initialize"
        handler = load_handler(self._spec)
        self._doing = "handle"
        pictures = [Path(path).read_bytes() for path in order["pictures"]]
        self._driver = Driver(handler, pictures, self._spec.batch_size, order["seed"])
        for _ in self._driver.run(order["warm_up_batches"], Collector()):
            pass
        if self._driver.refused:
            raise ExpectedError(
                f"the handler refused {self._driver.refused} photographs of the warm-up;"
                " expected pictures that it can decode"
            )
        watch = msgspec.convert(order["watch"], Watch)
        self._collector = make_collector(watch, handler, self._spec.name)
        return {}

    def run(self, order: Mapping[str, Any]) -> Answer:
        """Handles some batches."""
        batches = self._driver.run(order["batches"], self._collector)
        return {"batches": [asdict(sample) for sample in batches]}

    def finish(self, _: Mapping[str, Any]) -> Answer:
        """Saves files, and answers what the collector found."""
        if isinstance(self._collector, StageRecorder) and self._file:
            save_trace(self._driver, self._collector, self._file)
        shorten = make_shortener(self._spec.folder)
        found = self._collector.finish(shorten, self._file)
        return {**found, "refused": self._driver.refused}

    def explain(self, error: Exception) -> Answer:
        """An answer for what the handler, or we, raised."""
        if isinstance(error, ExpectedError):
            return {"error": str(error), "traceback": ""}
        text = "".join(traceback.format_exception(error))
        raised = f"{type(error).__name__}: {error}"
        return {"error": f"raised in {self._doing}: {raised}", "traceback": text}


def make_collector(watch: Watch, handler: LoadedHandler, name: str) -> Collector:
    """The collector of a kind of profile."""
    if watch.kind == CPROFILE:
        return CallCollector()
    if watch.kind == LINES:
        return LineCollector(choose_functions(handler, watch.functions))
    if watch.kind == FLAME:
        return FlameCollector(watch.interval_s, f"{name}: handle")
    return StageRecorder(handler)


if __name__ == "__main__":
    obey(ProfiledHandler())
