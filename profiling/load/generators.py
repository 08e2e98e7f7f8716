"""Load on a server and the programs that send it: Locust, and wrk, which needs less CPU.

Closed loop: each of N clients sends its next request when its last reply has arrived. Counted are
the replies that arrive inside the window. A server that stalls stops the clients too, so few
requests see the stall and the percentiles hide it.

Open loop (`rate`): requests are due at random times (Poisson), whatever the server does. Latency
counts from the time a request was due, so a stall shows in every request that was due meanwhile.
Counted are the requests that were due inside the window, until the last one is answered.

The load runs through the warm-up into the measured window without a pause.

Locust's FastHttpUser runs in a process of its own (`locust_child.py`): the load goes to its stdin
as JSON, events come from its stdout, and its CPU is measured apart.

wrk (`apt install wrk`): the raw latencies are its own histogram, 1 us wide. wrk has no warm-up of
its own, so it runs twice. Its window therefore begins with idle clients, unlike Locust's, and
requests in flight at its end are not counted. These few batches matter where a window has few
replies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import psutil

from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.profiling.core.workplace import child_environment
from offpath.serving.client import IMAGE_CONTENT_TYPE

CHILD = "offpath.profiling.load.locust_child"
CHARACTERS_SHOWN = 2000
# The status of a request without any HTTP reply: refused, reset, timed out.
NO_REPLY = "none"
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


def read_labels(reply: bytes) -> dict[str, float]:
    """Reads TorchServe's reply, label -> probability; raises ValueError on anything else."""
    content = json.loads(reply)
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object of labels and probabilities")
    return {str(label): float(value) for label, value in content.items()}


@dataclass(frozen=True)
class Call:
    """The form of a request; the default is TorchServe's.

    Attributes:
        headers: further request headers; a `Content-Type` here wins.
        read_reply: reads the body of a 200 as label -> probability, with at least the best label;
            raises ValueError, KeyError or TypeError on anything else.
        more_paths: paths that take requests in turn with the server's own, for several models.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    read_reply: Callable[[bytes], dict[str, float]] = read_labels
    more_paths: tuple[str, ...] = ()

    @property
    def all_headers(self) -> dict[str, str]:
        return {"Content-Type": IMAGE_CONTENT_TYPE, **self.headers}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The parameters of a load, equal for all windows of a run.

    Attributes:
        seconds: length of the window.
        warm_up_s: seconds of load before the window.
        rate: mean requests per second of the open loop; None for the closed loop.
        min_replies: a window of `seconds` continues until it has this many replies, for a minute
            at most.
        generator: the program that sends the load, `locust` or `wrk`.
        give_up_s: seconds after which a client closes its connection; None for never.
    """

    seconds: float
    warm_up_s: float
    rate: float | None = None
    min_replies: int = 0
    generator: str = "locust"
    give_up_s: float | None = None

    def for_window(
        self, url: str, paths: tuple[Path, ...], clients: int, **changes: Any
    ) -> WindowLoad:
        """Returns one window of this load; `changes` are further fields."""
        values = {**asdict(self), **changes}
        return WindowLoad(url=url, paths=paths, clients=clients, **values)


@dataclass(frozen=True, kw_only=True)
class WindowLoad(Load):
    """One window of load.

    Attributes:
        paths: files with the bodies, sent in turn, in an order that is always the same.
        more_paths: paths of the server that take requests in turn with that of `url`.
        clients: number of clients that wait for a reply at the same time. In the open loop, number
            of connections; a due request takes a free one.
        timeout_s: a request without a reply after this time counts as failed.
        longest_s: longest window that `min_replies` may lead to.
    """

    url: str
    paths: tuple[Path, ...]
    clients: int
    more_paths: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": IMAGE_CONTENT_TYPE})
    timeout_s: float = 120.0
    longest_s: float = 60.0

    @property
    def url_paths(self) -> list[str]:
        return [urlsplit(self.url).path, *self.more_paths]


@dataclass(frozen=True)
class LoadSample:
    """The replies of a window.

    Attributes:
        elapsed_s: length of the window; in the open loop until its last reply.
        statuses: number of replies by HTTP status ("200"); NO_REPLY for none.
        latencies_ms: latencies of the 200s in order of arrival; in the open loop from the time
            they were due.
        cpu_s: CPU time of the generator itself inside the window.
    """

    elapsed_s: float
    statuses: dict[str, int]
    latencies_ms: list[float] = field(repr=False)
    cpu_s: float


class Watcher(Protocol):
    """Is called while the load runs, on the caller's thread."""

    def on_window(self) -> None:
        """The window begins: sample the servers now."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Receives the replies so far, about twice per second; an exception ends the load."""


def check_generator(load: Load) -> None:
    """Raises WrongOption when the program is not installed or cannot send such a load."""
    if load.generator != "wrk":
        if importlib.util.find_spec("locust") is None:
            raise MissingPackage("locust", "bench")
    elif shutil.which("wrk") is None:
        raise WrongOption("wrk is not on the PATH: install it, or use --generator locust")
    elif load.rate is not None or load.give_up_s is not None:
        raise WrongOption(
            "wrk has only the closed loop, whose clients never give up: leave out --rate and "
            "--give-up, or use --generator locust"
        )


def send_load(load: WindowLoad, watcher: Watcher) -> LoadSample:
    """Sends the load; returns when the window is over.

    Raises what `check_generator` raises, and ExpectedError if the program died.
    """
    check_generator(load)
    return send_by_wrk(load, watcher) if load.generator == "wrk" else send_by_locust(load, watcher)


def wait_until_drained(load: WindowLoad) -> None:
    """Sends one request and waits for its reply.

    Generators leave their last requests behind, one per client, and the server still works on them.
    The next window would wait for them, or another server's would share the cores with them. A
    request that comes later is answered after them.
    """
    with contextlib.suppress(httpx.HTTPError):  # the watcher notices a server that died
        httpx.post(
            load.url,
            content=load.paths[0].read_bytes(),
            headers=dict(load.headers),
            timeout=load.timeout_s,
            trust_env=False,
            verify=False,
        )


def send_by_locust(load: WindowLoad, watcher: Watcher) -> LoadSample:
    """Sends the load by Locust, which goes from the warm-up into the window without a pause."""
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
    content = asdict(load) | {"paths": paths, "url_paths": load.url_paths}
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


def send_by_wrk(load: WindowLoad, watcher: Watcher) -> LoadSample:
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
    """Runs wrk once; raises ExpectedError, which quotes wrk, if it failed."""
    command = [
        *("wrk", "-t1", f"-c{load.clients}", f"-d{round(seconds)}s"),
        *("--timeout", f"{round(load.timeout_s)}s", "-s", str(folder / "load.lua")),
        load.url,
    ]
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    start, process, said = time.perf_counter(), psutil.Process(child.pid), None
    try:
        while said is None:
            # When it ends, the last sample is at most SAMPLE_S old.
            times = process.cpu_times()
            if watcher is not None:
                watcher.on_progress(0, time.perf_counter() - start)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = child.communicate(timeout=SAMPLE_S)
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise ExpectedError(
            f"wrk failed with code {child.returncode}: {said[-CHARACTERS_SHOWN:].strip()}"
        )
    return read_sample(folder / "out.json", times.user + times.system)


def read_sample(path: Path, cpu_s: float) -> LoadSample:
    summary = json.loads(path.read_text())
    latencies = [us / 1000 for us, count in summary["latencies_us"] for _ in range(count)]
    statuses = {"200": summary["requests"] - summary["bad_status"]}
    if summary["bad_status"]:
        statuses[BAD_STATUS] = summary["bad_status"]
    if summary["lost"]:
        statuses[NO_REPLY] = summary["lost"]
    return LoadSample(summary["duration_us"] / 1e6, statuses, latencies, cpu_s)
