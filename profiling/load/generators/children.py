"""Load generators as processes of their own, so that their CPU is told apart from ours."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

import psutil

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher, child_environment

SAMPLE_S = 0.1
WORDS_SHOWN = 1000


def run_module(module: str, plan: LoadPlan, watcher: Watcher) -> LoadSample:
    """Runs a generator written in Python: the plan (JSON) to its stdin, events from its stdout."""
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment() | {"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    try:
        return _follow(child, plan, watcher)
    finally:
        child.kill()
        child.wait()


def _follow(
    child: subprocess.Popen[str], plan: LoadPlan, watcher: Watcher
) -> LoadSample:
    """Sends the plan, passes the child's events on and returns its result."""
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
        f" {child.stderr.read()[-2 * WORDS_SHOWN :].strip()}"
    )


def run_program(command: Sequence[str], watcher: Watcher | None) -> float:
    """Runs a generator that is a program to its end; returns its CPU seconds.

    Raises:
        ExpectedError: it failed; the message has its last words.
    """
    # A file: a pipe that nobody reads meanwhile would stop a talkative one.
    with tempfile.TemporaryFile("w+") as words:
        return _watch_program(command, watcher, words)


def _watch_program(
    command: Sequence[str], watcher: Watcher | None, words: IO[str]
) -> float:
    child = subprocess.Popen(
        list(command),
        stdout=subprocess.DEVNULL,
        stderr=words,
        text=True,
        env=child_environment(),
    )
    start, cpu_s = time.perf_counter(), 0.0
    process = psutil.Process(child.pid)
    try:
        while child.poll() is None:
            # Until it ends: the last sample is at most SAMPLE_S old.
            times = process.cpu_times()
            cpu_s = times.user + times.system
            if watcher is not None:
                watcher.on_progress(0, time.perf_counter() - start)
            time.sleep(SAMPLE_S)
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        words.seek(0)
        said = words.read()[-WORDS_SHOWN:].strip()
        raise ExpectedError(f"{command[0]} failed with code {child.returncode}: {said}")
    return cpu_s
