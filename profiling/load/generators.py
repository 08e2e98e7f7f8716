"""The programs that send load: Locust, which is always there, and wrk, which needs less CPU.

Locust's FastHttpUser runs in a process of its own (`locust_child.py`): the load goes to its stdin
as JSON, events come from its stdout, and its CPU is measured apart.

wrk (`apt install wrk`): the raw latencies are its own histogram, 1 us wide. wrk has no warm-up of
its own, so it runs twice. Its window therefore begins with idle clients, unlike Locust's, and
requests in flight at its end are not counted. These few batches matter where a window has few
replies.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.profiling.core.workplace import child_environment
from offpath.profiling.load.window import (
    NO_REPLY,
    Generator,
    Load,
    LoadSample,
    Watcher,
    WindowLoad,
    wait_until_drained,
)

CHILD = "offpath.profiling.load.locust_child"
CHARACTERS_SHOWN = 2000
# wrk reports only that a status was 400 or above, and times these replies with the others.
BAD_STATUS = "4xx/5xx"
SAMPLE_S = 0.1
SCRIPT = """
local requests, turn = {}, 0
init = function(args)
  for path in io.lines("%(list)s") do
    local file = io.open(path, "rb")
    local body = file:read("*a")
    file:close()
    for _, url_path in ipairs({%(url_paths)s}) do
      requests[#requests + 1] = wrk.format("POST", url_path, {%(headers)s}, body)
    end
  end
end
request = function()
  turn = turn %% #requests + 1
  return requests[turn]
end
done = function(summary, latency, _)
  local out, e = io.open("%(out)s", "w"), summary.errors
  out:write(string.format(
    '{"requests": %%d, "duration_us": %%d, "bad_status": %%d, "lost": %%d, "latencies_us": [',
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout))
  for i = 1, #latency do
    local value_us, count = latency(i)
    out:write(string.format("%%s[%%d, %%d]", i > 1 and "," or "", value_us, count))
  end
  out:write("]}")
  out:close()
end
"""


class LocustGenerator:
    """Locust, which runs through the warm-up into the window without a pause."""

    name = "locust"

    def check(self, load: Load) -> None:
        if importlib.util.find_spec("locust") is None:
            raise MissingPackage("locust", "bench")

    def run(self, load: WindowLoad, watcher: Watcher) -> LoadSample:
        self.check(load)
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
            return follow(child, load, watcher)
        finally:
            child.kill()
            child.wait()


def follow(child: subprocess.Popen[str], load: WindowLoad, watcher: Watcher) -> LoadSample:
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("the load generator was started without pipes")
    paths = [str(path) for path in load.paths]
    content = dataclasses.asdict(load) | {"paths": paths, "url_paths": load.url_paths}
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


class WrkGenerator:
    """wrk with one thread."""

    name = "wrk"

    def check(self, load: Load) -> None:
        if shutil.which("wrk") is None:
            raise WrongOption("wrk is not on the PATH: install it, or use --generator locust")
        if load.rate is not None:
            raise WrongOption(
                "wrk has only the closed loop: leave out --rate, or use --generator locust"
            )

    def run(self, load: WindowLoad, watcher: Watcher) -> LoadSample:
        self.check(load)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_script(load, folder)
            if load.warm_up_s >= 1:
                run_wrk(load, folder, load.warm_up_s, None)
                wait_until_drained(load)
            seconds = load.seconds
            while True:
                watcher.on_window()
                sample = run_wrk(load, folder, seconds, watcher)
                replies = sum(sample.statuses.values())
                if replies >= load.min_replies or seconds >= load.longest_s:
                    return sample
                # wrk cannot continue a window: measure a longer one, with some reserve.
                needed_s = 1.2 * seconds * load.min_replies / max(replies, 1)
                seconds = min(load.longest_s, needed_s)
                wait_until_drained(load)


def write_script(load: WindowLoad, folder: Path) -> None:
    paths = [str(path.resolve()) for path in load.paths]
    random.Random(0).shuffle(paths)
    (folder / "list.txt").write_text("\n".join(paths) + "\n")
    script = SCRIPT % {
        "list": folder / "list.txt",
        "out": folder / "out.json",
        "headers": format_headers(load.headers),
        "url_paths": ", ".join(map(json.dumps, load.url_paths)),
    }
    (folder / "load.lua").write_text(script)


def format_headers(headers: Mapping[str, str]) -> str:
    # JSON's escapes are Lua's for the printable ASCII of a header.
    return ", ".join(f"[{json.dumps(key)}] = {json.dumps(value)}" for key, value in headers.items())


def run_wrk(load: WindowLoad, folder: Path, seconds: float, watcher: Watcher | None) -> LoadSample:
    command = [
        *("wrk", "-t1", f"-c{load.clients}", f"-d{round(seconds)}s"),
        *("--timeout", f"{round(load.timeout_s)}s", "-s", str(folder / "load.lua")),
        load.url,
    ]
    cpu_s = run_child(command, watcher)
    return read_sample(folder / "out.json", cpu_s)


def run_child(command: Sequence[str], watcher: Watcher | None) -> float:
    """Runs a generator's process, calling the watcher meanwhile; returns its CPU seconds.

    Raises ExpectedError, which quotes the process, if it failed.
    """
    # Into a file, because a full pipe that nobody reads would stop the process.
    with tempfile.TemporaryFile("w+") as words:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=words, env=child_environment()
        )
        start, cpu_s = time.perf_counter(), 0.0
        process = psutil.Process(child.pid)
        try:
            while child.poll() is None:
                # When it ends, the last sample is at most SAMPLE_S old.
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
            said = words.read()[-CHARACTERS_SHOWN:].strip()
            raise ExpectedError(f"{command[0]} failed with code {child.returncode}: {said}")
    return cpu_s


def read_sample(path: Path, cpu_s: float) -> LoadSample:
    summary = json.loads(path.read_text())
    latencies = [us / 1000 for us, count in summary["latencies_us"] for _ in range(count)]
    statuses = {"200": summary["requests"] - summary["bad_status"]}
    if summary["bad_status"]:
        statuses[BAD_STATUS] = summary["bad_status"]
    if summary["lost"]:
        statuses[NO_REPLY] = summary["lost"]
    return LoadSample(summary["duration_us"] / 1e6, statuses, latencies, cpu_s)


def find_generator(name: str) -> Generator:
    return WrkGenerator() if name == "wrk" else LocustGenerator()
