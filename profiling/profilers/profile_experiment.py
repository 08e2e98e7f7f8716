"""The experiment that profiles handlers, each in a process of its own."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Cell, Failure, Run
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handler_process import (
    CPROFILE,
    FLAME,
    STAGES,
    Job,
    profile_handler,
)
from offpath.profiling.profilers.handlers import (
    NAIVE,
    HandlerChoice,
    SharedSettings,
    batch_size_of,
    choose_handlers,
    describe_handler,
    prepare_handler,
)
from offpath.profiling.profilers.profile_figures import list_batches, sum_kinds
from offpath.profiling.profilers.samples import (
    FILES,
    FUNCTIONS,
    FunctionSample,
    read_samples,
)

FILE_SUFFIXES = {CPROFILE: ".prof", FLAME: "-flame.html"}
EXPERIMENT = "profile-"


@dataclass(frozen=True)
class ProfileChoices:
    """The choices for a profile of handlers.

    Attributes:
        kind: STAGES, CPROFILE, LINES or FLAME.
        batch_size: None for each handler's own default.
        output: folder for files of single handlers.
        functions: for LINES; empty for the handler's stages.
        trace: for STAGES, the file for a torch.profiler trace.
    """

    kind: str
    handlers: tuple[str, ...]
    mars: tuple[Path, ...]
    model: str
    requests: int
    batch_size: int | None
    images: str
    s3_latency_ms: float
    threads: int
    warm_up: int
    device: str
    command: str
    output: Path = Path()
    functions: tuple[str, ...] = ()
    trace: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        kept = "model requests batch_size threads warm_up device".split()
        settings = {name: getattr(self, name) for name in kept}
        if NAIVE in self.handlers:
            settings["s3_latency_ms"] = self.s3_latency_ms
        return settings

    def name_file(self, handler: str) -> Path | None:
        if self.kind in FILE_SUFFIXES:
            return self.output / f"{handler}{FILE_SUFFIXES[self.kind]}"
        if self.kind == STAGES and self.trace is not None:
            several = len(self.handlers) + len(self.mars) > 1
            stem = f"{self.trace.stem}-{handler}"
            return self.trace.with_stem(stem) if several else self.trace
        return None


def run_profile(choices: ProfileChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Profiles handlers one after the other. A handler that fails is left out.

    `save` is called with everything measured so far, after each handler.

    Raises:
        ExpectedError: the choices are wrong, or no handler could be profiled.
    """
    handlers = choose_handlers(choices.handlers, choices.mars)
    workload = load_workload(choices.images, progress=observer.on_step)
    run = Run(
        EXPERIMENT + choices.kind,
        choices.command,
        choices.settings,
        workloads={workload.name: workload.facts},
    )
    with contextlib.ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="offpath-profile-")
        folder = Path(stack.enter_context(name))
        shared = stack.enter_context(preparing(choices, handlers, observer))
        run.variants = {one.name: describe_handler(one, shared) for one in handlers}
        if len(handlers) > 1 and any(choice.is_archive for choice in handlers):
            own = [f"{name} runs {it['model']}" for name, it in run.variants.items()]
            run.warnings.append(f"models may differ: {', '.join(own)}")
        for done, handler in enumerate(handlers):
            observer.on_progress(done, len(handlers))
            try:
                add_handler(run, choices, handler, shared, workload, folder, observer)
            except ExpectedError as error:
                run.failures.append(Failure(0, handler.name, str(error)))
                observer.on_failure(handler.name, str(error))
            save(run)
    if not run.rows:
        raise ExpectedError(run.failures[0].reason)
    return run


def add_handler(
    run: Run,
    choices: ProfileChoices,
    handler: HandlerChoice,
    shared: SharedSettings,
    workload: Workload,
    folder: Path,
    observer: Observer,
) -> None:
    name, size = handler.name, batch_size_of(handler, shared)
    observer.on_step(f"{name}: build")
    spec = prepare_handler(handler, shared, folder / name)
    batches, file = math.ceil(choices.requests / size), choices.name_file(name)
    job = Job(
        choices.kind,
        spec,
        tuple(str(path.resolve()) for path in workload.paths),
        math.ceil(choices.warm_up / size),
        batches,
        choices.functions,
        None if file is None else str(file.resolve()),
    )
    observer.on_step(f"{name}: {batches} batches of {size}")
    profile = profile_handler(job, folder / name)
    cell = Cell(workload.name, 0, size)
    run.add(0, name, cell, list_batches(profile.batches))
    for kind, samples in profile.found.items():
        run.details.setdefault(kind, {})[name] = samples
    functions = read_samples(run, FUNCTIONS, name, FunctionSample)
    run.add(0, name, cell, sum_kinds(functions))
    if file is not None:
        run.details.setdefault(FILES, {})[name] = [show_path(file)]
    if profile.refused:
        run.warnings.append(f"{name} refused {profile.refused} requests, whose time says little")


@contextlib.contextmanager
def preparing(
    choices: ProfileChoices, handlers: Sequence[HandlerChoice], observer: Observer
) -> Iterator[SharedSettings]:
    """Yields what the handlers share. For the naive handler, a stand-in for S3 runs meanwhile.

    Our handler then ships its prediction log to it too: both put each prediction there.
    """
    shared = SharedSettings(
        choices.model, choices.batch_size, choices.threads, find_gpu(choices.device)
    )
    if not any(choice.source == NAIVE for choice in handlers):
        yield shared
        return
    from offpath.profiling.servers.put_store import PREDICTION_LOG, run_put_store

    observer.on_step("a stand-in for S3")
    with run_put_store(choices.s3_latency_ms) as store:
        yield replace(shared, prediction_log=PREDICTION_LOG, s3_environ=store.env)


def find_gpu(device: str) -> int | None:
    """Returns the GPU's id as TorchServe would give it to a worker, or None for the CPU.

    Raises ExpectedError if CUDA was chosen and no device is there.
    """
    if device == "cpu":
        return None
    import torch

    if torch.cuda.is_available():
        return 0
    if device == "cuda":
        raise ExpectedError("no CUDA device found; choose the device cpu")
    return None


def show_path(path: Path) -> str:
    """Returns a path as the user would type it, without folders of this machine if possible."""
    path = path.resolve()
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path.name)
