"""Runs one archive on four servers and compares their answers.

usage: python compare.py [FILE.mar]
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from offpath.archive.photographs import BUNDLED
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import make_servers

# TorchServe and Granian behind the front door, and the output of two `offpath export` commands.
SERVERS = ["offpath", "offpath-granian", "offpath-ray", "offpath-export-triton"]
MOST_DIFFERENCE = 1e-4

Answer = dict[str, Any]


def ask(server: Any, url: str, body: bytes) -> Answer:
    """Returns label -> probability, or the error; Triton's own message contains ours."""
    headers = {"Content-Type": "application/octet-stream", **server.call.headers}
    reply = httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False)
    if reply.status_code == 200:
        answer: Answer = server.call.read_reply(reply.content)
        return answer
    error = reply.json()
    inner: Answer = json.loads(error["error"]) if "error" in error else error
    return {f"{inner['code']} {inner['type']}": 1.0}


def ask_all(server: Any, folder: Path, bodies: dict[str, bytes]) -> dict[str, Answer]:
    """Starts a server, and returns its answer to each body."""
    with ExitStack() as stack:
        server.prepare(folder)
        url = stack.enter_context(server.running()).predict_url
        return {name: ask(server, url, body) for name, body in bodies.items()}


def compare(mine: Answer, theirs: Answer) -> float:
    """Returns the largest difference of a probability; 1 if the best labels differ."""
    if next(iter(mine)) != next(iter(theirs)):
        return 1.0
    return max(abs(mine[label] - theirs[label]) for label in mine.keys() & theirs)


def main(reference: str) -> None:
    """Prints a table of all answers, and fails if two servers differ."""
    bodies = {file.name: file.read_bytes() for file in sorted(BUNDLED.glob("*.jpg"))}
    bodies["damaged.jpg"] = bodies["espresso.jpg"][:1000]
    asked: dict[str, dict[str, Answer]] = {}
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for server in make_servers(SERVERS, load_model(reference), cores=1):
            reason = server.why_not()
            if reason is not None:
                print(f"{server.name}: left out, {reason}", flush=True)
                continue
            print(f"{server.name}: starting ...", flush=True)
            answers = ask_all(server, Path(folder) / server.name, bodies)
            asked[server.name] = answers
            first = next(iter(asked.values()))
            for name, answer in answers.items():
                (label, probability), *_ = answer.items()
                print(f"  {name:<14} {probability:.6f}  {label}", flush=True)
                worst = max(worst, compare(first[name], answer))
    print(f"largest difference of any probability: {worst:.1e}")
    if worst > MOST_DIFFERENCE or len(asked) < 2:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "efficientnet-lite0")
