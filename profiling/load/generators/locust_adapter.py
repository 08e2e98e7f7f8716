"""Runs Locust's FastHttpUser (`locust_child.py`) in its own process."""

from __future__ import annotations

import importlib.util

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.generators.children import run_module
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher


class LocustGenerator:
    """Locust; continuous from the warm-up into the window."""

    name = "locust"

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `profiling.load.Generator`."""
        if importlib.util.find_spec("locust") is None:
            raise ExpectedError(
                "locust is not installed; get it with: pip install 'torchserve-offpath[bench]'"
            )

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `profiling.load.Generator`."""
        self.check(plan.seconds, plan.rate)
        return run_module(
            "offpath.profiling.load.generators.locust_child", plan, watcher
        )
