"""One in-process profile, from choices to result: prepares, drives in turns, collects."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import describe_host
from offpath.profiling.in_process.handler_process import HandlerProcess
from offpath.profiling.in_process.handlers import (
    NAIVE,
    OFFPATH,
    HandlerChoice,
    HandlerSpec,
    Preparation,
    choose_handlers,
    prepare_handler,
)
from offpath.profiling.in_process.profile_result import (
    BatchSample,
    FunctionSample,
    HandlerProfile,
    LineSample,
    ProfileResult,
)
from offpath.profiling.load.workload import Workload, load_workload

# Handlers take turns this many times, so that a drift of the machine hits all of them.
ROUNDS = 10
STAGES, CPROFILE, LINES, FLAME = "stages", "cprofile", "lines", "flame"
OVERHEAD = "overhead"
FILE_SUFFIXES = {CPROFILE: ".prof", FLAME: "-flame.html"}


@dataclass(frozen=True)
class ProfileChoices:
    """What the user asked for; see `offpath profile stages --help`.

    Attributes:
        batch_size: None for each handler's own default.
        functions: for `lines`; empty for the handler's stages.
        output: folder for what is written beside the JSON.
        trace: for `stages`: where the torch.profiler trace goes.
    """

    kind: str
    handlers: tuple[str, ...]
    mars: tuple[Path, ...]
    model: str
    requests: int
    batch_size: int | None
    images: str
    seed: int
    s3_latency_ms: float
    threads: int
    warm_up: int
    device: str
    command: str
    output: Path
    functions: tuple[str, ...] = ()
    interval_ms: float = 1.0
    trace: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for two results to be compared."""
        kept = (
            "model",
            "requests",
            "batch_size",
            "seed",
            "threads",
            "warm_up",
            "device",
        )
        settings = {name: getattr(self, name) for name in kept}
        if self.kind == FLAME:
            settings["interval_ms"] = self.interval_ms
        if NAIVE in self.handlers:
            settings["s3_latency_ms"] = self.s3_latency_ms
        return settings


class Observer(Protocol):
    """Is told how far a run has come."""

    def on_step(self, text: str) -> None:
        """A step begins."""

    def on_batches(self, images: int, of: int) -> None:
        """Images handled so far, all handlers together."""


def run_profile(choices: ProfileChoices, observer: Observer) -> ProfileResult:
    """Runs a whole profile.

    Raises:
        ExpectedError: wrong choices, a handler that cannot be loaded or that raises.
    """
    handlers = choose_handlers(choices.handlers, choices.mars)
    workload = load_workload(choices.images, choices.seed, observer.on_step)
    result = begin_result(choices, workload)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="offpath-profile-"))
        )
        common = stack.enter_context(preparing(choices, handlers, observer))
        profiled: list[ProfiledHandler] = []
        for choice in handlers:
            observer.on_step(f"{choice.name}: build")
            spec = prepare_handler(choice, common, folder / str(len(profiled)))
            profiled.append(start(spec, choices, workload, folder, stack, observer))
        drive_in_turns(profiled, choices.requests, observer)
        for one in profiled:
            observer.on_step(f"{one.profile.name}: collect")
            one.collect()
            result.handlers.append(one.profile)
    return result


def begin_result(choices: ProfileChoices, workload: Workload) -> ProfileResult:
    """A result without samples."""
    return ProfileResult(
        kind=choices.kind,
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workload={
            "name": workload.name,
            "identity": workload.identity,
            "mean_bytes": workload.mean_bytes,
            "count": len(workload.paths),
        },
    )


@contextlib.contextmanager
def preparing(
    choices: ProfileChoices, handlers: list[HandlerChoice], observer: Observer
) -> Iterator[Preparation]:
    """What the handlers share; with the naive one among them, an S3 server that takes its time.

    Ours then ships its prediction log to the same server: both keep every prediction in S3.
    """
    common = Preparation(
        choices.model, choices.batch_size, choices.threads, find_gpu(choices.device)
    )
    if not any(choice.source == NAIVE for choice in handlers):
        yield common
        return
    from offpath.profiling.servers.s3_store import PREDICTION_LOG, run_store

    observer.on_step("an S3 server")
    with run_store(choices.s3_latency_ms) as store:
        yield replace(common, prediction_log=PREDICTION_LOG, s3_environ=store.env)


def find_gpu(device: str) -> int | None:
    """The GPU's id as TorchServe would give it to a worker; None for the CPU.

    Raises:
        ExpectedError: asked for, and not there.
    """
    if device == "cpu":
        return None
    import torch

    if torch.cuda.is_available():
        return 0
    if device == "cuda":
        raise ExpectedError("no CUDA device found; use --device cpu")
    return None


@dataclass
class ProfiledHandler:
    """One handler of the run, loaded and warm."""

    spec: HandlerSpec
    process: HandlerProcess
    profile: HandlerProfile
    file: Path | None

    def run(self, batches: int) -> int:
        """Handles some batches; returns the images."""
        answer = self.process.ask("run", batches=batches)
        samples = [BatchSample(**row) for row in answer["batches"]]
        self.profile.batches.extend(samples)
        return sum(sample.size for sample in samples)

    def collect(self) -> None:
        """Fetches what the collector found."""
        answer = self.process.ask("finish")
        self.profile.functions = [
            FunctionSample(**row) for row in answer.get("functions", [])
        ]
        self.profile.lines = [LineSample(**row) for row in answer.get("lines", [])]
        if answer["refused"]:
            self.profile.settings["refused"] = answer["refused"]
        if self.file is not None:
            self.profile.files.append(show_path(self.file))


def start(
    spec: HandlerSpec,
    choices: ProfileChoices,
    workload: Workload,
    folder: Path,
    stack: contextlib.ExitStack,
    observer: Observer,
) -> ProfiledHandler:
    """Starts a handler's process, loads the handler and warms it up."""
    observer.on_step(f"{spec.name}: load and warm up")
    log_file = folder / f"{len(os.listdir(folder))}.log"
    process = stack.enter_context(HandlerProcess(spec.name, spec.environ, log_file))
    file = name_file(choices, spec.name)
    process.ask(
        "load",
        kind=choices.kind,
        spec=spec.to_json(),
        pictures=[str(path.resolve()) for path in workload.paths],
        seed=choices.seed,
        warm_up_batches=math.ceil(choices.warm_up / spec.batch_size),
        functions=choices.functions,
        interval_s=choices.interval_ms / 1e3,
        file=str(file.resolve()) if file else None,
    )
    profile = HandlerProfile(spec.name, dict(spec.settings))
    return ProfiledHandler(spec, process, profile, file)


def name_file(choices: ProfileChoices, handler: str) -> Path | None:
    """What is written beside the JSON for one handler."""
    if choices.kind in FILE_SUFFIXES:
        return choices.output / f"{handler}{FILE_SUFFIXES[choices.kind]}"
    if choices.kind == STAGES and choices.trace is not None:
        path = choices.trace
        several = len(choices.handlers) + len(choices.mars) > 1
        return path.with_stem(f"{path.stem}-{handler}") if several else path
    return None


def show_path(path: Path) -> str:
    """As the user would type it: never with the machine's folders where that can be helped."""
    path = path.resolve()
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path.name)


def drive_in_turns(
    handlers: list[ProfiledHandler], requests: int, observer: Observer
) -> None:
    """Each handler answers at least `requests` requests, in ROUNDS turns."""
    left = {
        one.spec.name: math.ceil(requests / one.spec.batch_size) for one in handlers
    }
    of = sum(left[one.spec.name] * one.spec.batch_size for one in handlers)
    images = 0
    for turn in range(ROUNDS):
        for one in handlers:
            batches = math.ceil(left[one.spec.name] / (ROUNDS - turn))
            if not batches:
                continue
            observer.on_step(one.spec.name)
            images += one.run(batches)
            left[one.spec.name] -= batches
            observer.on_batches(images, of)


def describe_overhead(result: ProfileResult) -> Mapping[str, float]:
    """What `overhead` measured; splits its one handler's batches in two for the report."""
    from offpath.profiling.in_process.timing_overhead import (
        split_batches,
        summarise_overhead,
    )

    profile = result.handlers[0]
    share, error = summarise_overhead(profile.batches)
    on, off = split_batches(profile.batches)
    result.kind = STAGES
    result.handlers = [
        HandlerProfile(f"{OFFPATH}, timings {word}", dict(profile.settings), batches)
        for word, batches in (("on", on), ("off", off))
    ]
    return {"overhead": share, "error": error, "batches": len(on) + len(off)}
