"""Runs wrk: a tenth of Locust's CPU a request, where the machine has it (`apt install wrk`).

The raw latencies are wrk's own histogram, 1 us wide. wrk has no warm-up of its own: it runs
twice, so the window begins with idle clients, which Locust's does not, and what is in flight at its
end is not counted: a few batches too little, which counts where a window has few replies.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.generators.children import run_program
from offpath.profiling.load.plan import NO_REPLY, LoadPlan, LoadSample, Watcher

# wrk tells only that a status was 400 or above, and times those replies with the others.
BAD_STATUS = "4xx/5xx"
SCRIPT = """
local requests, turn = {}, 0
init = function(args)
  for path in io.lines("%(list)s") do
    local file = io.open(path, "rb")
    requests[#requests + 1] = wrk.format(
      "POST", nil, {%(headers)s}, file:read("*a"))
    file:close()
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


class WrkGenerator:
    """wrk with one thread."""

    name = "wrk"

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `profiling.load.Generator`."""
        if shutil.which("wrk") is None:
            raise ExpectedError(
                "wrk is not on the PATH: install it, or use --generator locust"
            )
        if seconds is None:
            raise ExpectedError(
                "wrk stops by time alone: give --seconds, or use --generator locust"
            )
        if rate is not None:
            raise ExpectedError(
                "wrk knows closed loop alone: leave out --rate, or use --generator locust"
            )

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `profiling.load.Generator`."""
        self.check(plan.seconds, plan.rate)
        if plan.seconds is None:
            raise RuntimeError("check() lets no such plan pass")
        with tempfile.TemporaryDirectory() as folder:
            command = write_script("wrk", plan, Path(folder))
            if plan.warm_up_s >= 1:
                run_program(for_seconds(command, plan, plan.warm_up_s), None)
                wait_until_drained(plan)
            seconds = plan.seconds
            while True:
                watcher.on_window()
                cpu_s = run_program(for_seconds(command, plan, seconds), watcher)
                sample = read_sample(Path(folder) / "out.json", cpu_s)
                replies = sum(sample.statuses.values())
                if replies >= plan.min_replies or seconds >= plan.longest_s:
                    return sample
                # wrk cannot go on: a window as long as the rate asks for, with something to spare.
                needed_s = 1.2 * seconds * plan.min_replies / max(replies, 1)
                seconds = min(plan.longest_s, needed_s)
                wait_until_drained(plan)


def wait_until_drained(plan: LoadPlan) -> None:
    """Sends one request and waits for its answer.

    wrk leaves its last requests behind, one a client, and servers work on them all the same: the
    next run would wait for them. One that comes later is answered later.
    """
    with contextlib.suppress(httpx.HTTPError):  # the watcher notices a server that died
        httpx.post(
            plan.url,
            content=plan.paths[0].read_bytes(),
            headers=dict(plan.headers),
            timeout=plan.timeout_s,
            trust_env=False,
        )


def write_script(binary: str, plan: LoadPlan, folder: Path) -> list[str]:
    """Writes the script with its list of photographs; returns wrk's command without duration."""
    paths = [str(path.resolve()) for path in plan.paths]
    random.Random(plan.seed).shuffle(paths)
    (folder / "list.txt").write_text("\n".join(paths) + "\n")
    (folder / "load.lua").write_text(
        SCRIPT
        % {
            "list": folder / "list.txt",
            "out": folder / "out.json",
            "headers": format_headers(plan.headers),
        }
    )
    timeout = f"{round(plan.timeout_s)}s"
    return [
        binary,
        "-t1",
        f"-c{plan.clients}",
        "--timeout",
        timeout,
        "-s",
        str(folder / "load.lua"),
    ]


def format_headers(headers: Mapping[str, str]) -> str:
    """The inside of a Lua table."""
    # JSON's escapes are Lua's for the printable ASCII of a header.
    return ", ".join(
        f"[{json.dumps(key)}] = {json.dumps(value)}" for key, value in headers.items()
    )


def for_seconds(command: list[str], plan: LoadPlan, seconds: float) -> list[str]:
    """wrk's command with its duration and the address."""
    return [*command, f"-d{round(seconds)}s", plan.url]


def read_sample(path: Path, cpu_s: float) -> LoadSample:
    """wrk's own summary as a LoadSample."""
    summary = json.loads(path.read_text())
    latencies = [
        us / 1000 for us, count in summary["latencies_us"] for _ in range(count)
    ]
    statuses = {"200": summary["requests"] - summary["bad_status"]}
    if summary["bad_status"]:
        statuses[BAD_STATUS] = summary["bad_status"]
    if summary["lost"]:
        statuses[NO_REPLY] = summary["lost"]
    return LoadSample(summary["duration_us"] / 1e6, statuses, latencies, cpu_s)
