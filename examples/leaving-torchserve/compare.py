"""Runs one archive on four servers and compares their answers.

usage: python compare.py FILE.mar
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from offpath.archive.mar_file import read_mar
from offpath.archive.photographs import BUNDLED
from offpath.deploy.ray.ray_export import export_ray
from offpath.deploy.triton.triton_export import export_triton
from offpath.profiling.load.generators import Call
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.ray_serve import EXPORT_PORT, OffpathRay
from offpath.profiling.servers.triton import MODEL, OffpathExportTriton

MAX_DIFFERENCE = 1e-4

Answer = dict[str, Any]
# The URL of predictions, and how a client calls it.
Served = tuple[str, Call]


@contextmanager
def serve(archive: Path, server: str) -> Iterator[Served]:
    """Runs `offpath serve` with a front door."""
    command = [sys.executable, "-m", "offpath", "serve", str(archive), "--front"]
    command += ["--server", server, "--port", "0", "--metrics-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"{server} did not start; its message is above")
            name = read_mar(archive).model_name
            yield f"{json.loads(line)['inference']}/predictions/{name}", Call()
        finally:
            process.terminate()


# The benchmark's servers know how to start Ray Serve and Triton without opening a port to others.
class Ray(OffpathRay):
    """Ray Serve with the output of `offpath export ray`."""

    def __init__(self, archive: Path) -> None:
        super().__init__(load_model("near-free"), workers=1)
        self.archive = archive
        self.predict_path = f"/predictions/{read_mar(archive).model_name}"

    def build(self, folder: Path) -> None:
        output = folder / "application"
        export_ray(self.archive, output, (1, 1), port=EXPORT_PORT)


class Triton(OffpathExportTriton):
    """Triton with the output of `offpath export triton`."""

    def __init__(self, archive: Path) -> None:
        super().__init__(load_model("near-free"), workers=1)
        self.archive = archive

    def write_models(self, folder: Path) -> None:
        export_triton(self.archive, folder / "models", MODEL)


@contextmanager
def run_export(server: Ray | Triton) -> Iterator[Served]:
    """Exports the archive and runs the server with it."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "export"
        server.prepare(folder)
        with server.running(folder) as running:
            yield running.predict_url, server.call


def ask(url: str, call: Call, body: bytes) -> Answer:
    """Returns label -> probability, or the error; Triton's own message contains ours."""
    headers = {"Content-Type": "application/octet-stream", **call.headers}
    reply = httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False)
    if reply.status_code == 200:
        answer: Answer = call.read_reply(reply.content)
        return answer
    error = reply.json()
    inner: Answer = json.loads(error["error"]) if "error" in error else error
    return {f"{inner['code']} {inner['type']}": 1.0}


def compare(mine: Answer, theirs: Answer) -> float:
    """Returns the largest difference of a probability; 1 if the best labels differ."""
    if next(iter(mine)) != next(iter(theirs)):
        return 1.0
    return max(abs(mine[label] - theirs[label]) for label in mine.keys() & theirs)


def main(archive: Path) -> None:
    """Prints all answers, and fails if two servers differ."""
    bodies = {file.name: file.read_bytes() for file in sorted(BUNDLED.glob("*.jpg"))}
    bodies["damaged.jpg"] = bodies["espresso.jpg"][:1000]
    servers: dict[str, Callable[[], AbstractContextManager[Served]]] = {
        "TorchServe": lambda: serve(archive, "torchserve"),
        "Granian": lambda: serve(archive, "granian"),
    }
    for exported in (Ray(archive), Triton(archive)):
        reason = exported.why_not()
        if reason is None:
            servers[exported.name] = lambda one=exported: run_export(one)
        else:
            print(f"{exported.name}: left out, {reason}", flush=True)
    first: dict[str, Answer] = {}
    worst = 0.0
    for server_name, run in servers.items():
        print(server_name, flush=True)
        with run() as (url, call):
            for name, body in bodies.items():
                answer = ask(url, call, body)
                (label, probability), *_ = answer.items()
                print(f"  {name:<14} {probability:.6f}  {label}", flush=True)
                worst = max(worst, compare(first.setdefault(name, answer), answer))
    print(f"largest difference of any probability: {worst:.1e}")
    sys.exit(worst > MAX_DIFFERENCE)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__).strip())
    main(Path(sys.argv[1]))
