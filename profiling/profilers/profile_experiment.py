"""The experiment that profiles handlers: they take turns, each in a process of its own."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handler_process import (
    CPROFILE,
    FLAME,
    STAGES,
    HandlerProcess,
    Watch,
)
from offpath.profiling.profilers.handlers import (
    NAIVE,
    HandlerChoice,
    HandlerSpec,
    SharedSettings,
    batch_size_of,
    choose_handlers,
    describe_handler,
    prepare_handler,
)
from offpath.profiling.profilers.profile_figures import (
    fill_gaps,
    list_batches,
    sum_kinds,
)
from offpath.profiling.profilers.samples import (
    FILES,
    FUNCTIONS,
    LINES,
    FunctionSample,
    read_samples,
)

# Handlers take this many turns, so that a drift of the machine affects all of them.
ROUNDS = 10
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
    seed: int
    s3_latency_ms: float
    threads: int
    warm_up: int
    device: str
    command: str
    output: Path = Path()
    functions: tuple[str, ...] = ()
    interval_ms: float = 1.0
    trace: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the choices that a result keeps."""
        kept = "model requests batch_size seed threads warm_up device".split()
        settings = {name: getattr(self, name) for name in kept}
        if self.kind == FLAME:
            settings["interval_ms"] = self.interval_ms
        if NAIVE in self.handlers:
            settings["s3_latency_ms"] = self.s3_latency_ms
        return settings

    def name_file(self, handler: str) -> Path | None:
        """Returns the path of the file that is written for one handler, if any."""
        if self.kind in FILE_SUFFIXES:
            return self.output / f"{handler}{FILE_SUFFIXES[self.kind]}"
        if self.kind == STAGES and self.trace is not None:
            several = len(self.handlers) + len(self.mars) > 1
            stem = f"{self.trace.stem}-{handler}"
            return self.trace.with_stem(stem) if several else self.trace
        return None


class HandlerTurns:
    """The experiment. A variant is a handler; its one cell is the images and the batch size.

    Args:
        run: receives everything that is not a figure: functions, lines, files.
    """

    def __init__(
        self,
        choices: ProfileChoices,
        handlers: Sequence[HandlerChoice],
        shared: SharedSettings,
        workload: Workload,
        run: Run,
    ) -> None:
        self.name = run.experiment
        self._choices, self._shared, self._workload = choices, shared, workload
        self._handlers = {choice.name: choice for choice in handlers}
        self._specs: dict[str, HandlerSpec] = {}
        self._run = run
        self.cells: Sequence[Cell] = ()
        self.variants: Sequence[Variant] = [
            Variant(choice.name, describe_handler(choice, shared), (cell,))
            for choice in handlers
            for cell in [Cell(workload.name, 0, batch_size_of(choice, shared))]
        ]
        self.rounds = min(ROUNDS, *map(self._count_batches, self.variants))

    def _count_batches(self, variant: Variant) -> int:
        size: int = variant.facts["batch_size"]
        return math.ceil(self._choices.requests / size)

    def prepare(self, variant: Variant, folder: Path) -> None:
        """Builds and unzips the handler's archive."""
        choice = self._handlers[variant.name]
        self._specs[variant.name] = prepare_handler(choice, self._shared, folder)

    @contextlib.contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[HandlerProcess, Figures]]:
        """Loads the handler and warms it up. At the end, fetches what its collector found."""
        name, choices = turn.variant.name, self._choices
        file = choices.name_file(name)
        spec = self._specs[name]
        log_file = Path(spec.folder).with_name("log.txt")
        turn.observer.on_step(f"{name}: load and warm up")
        with HandlerProcess(name, spec.environ, log_file) as process:
            watch = Watch(choices.kind, choices.functions, choices.interval_ms / 1e3)
            paths = self._workload.paths
            process.load(spec, paths, choices.warm_up, choices.seed, watch, file)
            yield process, {}
            if not self._run.has_failed(name):
                turn.observer.on_step(f"{name}: collect")
                self._keep(turn.variant, process, file)

    def measure(self, target: HandlerProcess, cell: Cell, turn: Turn) -> Figures:
        """Handles the turn's share of the batches."""
        batches = self._count_batches(turn.variant)
        done, until = (batches * n // self.rounds for n in (turn.round, turn.round + 1))
        return list_batches(target.run(until - done))

    def _keep(self, variant: Variant, process: HandlerProcess, file: Path | None) -> None:
        found = process.finish()
        for kind in (FUNCTIONS, LINES):
            if kind in found:
                self._run.details.setdefault(kind, {})[variant.name] = found[kind]
        functions = read_samples(self._run, FUNCTIONS, variant.name, FunctionSample)
        for cell in variant.cells or ():
            self._run.add(0, variant.name, cell, sum_kinds(functions))
        if file is not None:
            files = self._run.details.setdefault(FILES, {})
            files[variant.name] = [show_path(file)]
        if found["refused"]:
            self._run.warnings.append(
                f"{variant.name} refused {found['refused']} requests, whose time says little"
            )


def run_profile(choices: ProfileChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Profiles handlers. A handler that fails is left out.

    Args:
        save: called with everything measured so far, after each turn and at the end.

    Raises:
        ExpectedError: the choices are wrong, or no handler could be profiled.
    """
    handlers = choose_handlers(choices.handlers, choices.mars)
    workload = load_workload(choices.images, choices.seed, observer.on_step)
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
        turns = HandlerTurns(choices, handlers, shared, workload, run)
        run.variants = {one.name: dict(one.facts) for one in turns.variants}
        if len(handlers) > 1 and any(choice.is_archive for choice in handlers):
            own = [f"{name} runs {it['model']}" for name, it in run.variants.items()]
            run.warnings.append(f"models may differ: {', '.join(own)}")
        schedule = Schedule(turns.rounds, side_by_side=True)
        runner = Runner(turns, run, schedule, observer, lambda: save(run))
        runner.prepare(folder)
        runner.run_rounds()
    if not run.rows:
        raise ExpectedError(run.failures[0].reason)
    fill_gaps(run)
    save(run)
    return run


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

    Raises:
        ExpectedError: CUDA was chosen, and no device is there.
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
