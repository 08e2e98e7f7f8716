"""Runs Locust's FastHttpUser (`locust_child.py`) in a process of its own.

The plan goes to its stdin as JSON, events come from its stdout, and its CPU is measured apart.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from typing import Any

from offpath.handler.errors import ExpectedError, MissingPackage
from offpath.profiling.core.workplace import child_environment
from offpath.profiling.load.plan import Load, LoadPlan, LoadSample, Watcher

CHILD = "offpath.profiling.load.generators.locust_child"
CHARACTERS_SHOWN = 2000


class LocustGenerator:
    """Locust, which runs through the warm-up into the window without a pause."""

    name = "locust"

    def check(self, load: Load) -> None:
        if importlib.util.find_spec("locust") is None:
            raise MissingPackage("locust", "bench")

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        self.check(plan)
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # The package may be only on sys.path.
            env=child_environment() | {"PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        try:
            return follow(child, plan, watcher)
        finally:
            child.kill()
            child.wait()


def follow(child: subprocess.Popen[str], plan: LoadPlan, watcher: Watcher) -> LoadSample:
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("the load generator was started without pipes")
    content = dataclasses.asdict(plan) | {"paths": [str(path) for path in plan.paths]}
    child.stdin.write(json.dumps(content))
    child.stdin.close()
    for line in child.stdout:
        event: dict[str, Any] = json.loads(line)
        kind = event.pop("event")
        if kind == "window":
            watcher.on_window()
        elif kind == "progress":
            watcher.on_progress(event["replies"], event["elapsed_s"])
        else:
            return LoadSample(**event)
    raise ExpectedError(
        "the load generator ended without a result:"
        f" {child.stderr.read()[-CHARACTERS_SHOWN:].strip()}"
    )
