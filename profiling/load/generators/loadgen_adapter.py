"""Runs MLPerf LoadGen (`loadgen_child.py`) in its own process.

A candidate of `offpath bench calibrate`, not of the benchmark: LoadGen schedules and times, the
sending is its user's, so what a request costs is mostly Python's `http.client`.
"""

from __future__ import annotations

import importlib.util

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.generators.children import run_module
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher


class LoadGenGenerator:
    """LoadGen's scenarios Offline (closed loop, by time) and Server (Poisson)."""

    name = "loadgen"

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `profiling.load.Generator`."""
        if importlib.util.find_spec("mlperf_loadgen") is None:
            raise ExpectedError(
                "LoadGen is not installed; get it with: pip install mlcommons-loadgen"
            )
        if seconds is None and rate is None:
            raise ExpectedError(
                "LoadGen's Offline scenario is bound by time: --seconds"
            )

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `profiling.load.Generator`."""
        self.check(plan.seconds, plan.rate)
        return run_module(
            "offpath.profiling.load.generators.loadgen_child", plan, watcher
        )
