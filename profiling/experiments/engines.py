"""`bench engines`: a model's forward by every engine and precision that can run here.

A variant is an engine with a precision; a workload is a model, and its cell without a batch size is
the engine's start. Each is measured in processes of its own (`engines_child.py`), as workers run:
one a core with one thread each. This process never imports torch: pages of its libraries that it
shared with the measured ones would be taken off their proportional memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.model.engines import PRECISIONS
from offpath.profiling.core.child_process import ChildProcess
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.host import describe_host, read_versions
from offpath.profiling.core.run import (
    Cell,
    Failure,
    Figures,
    Run,
    merge_runs,
)
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.engines_team import CHILD, Team
from offpath.profiling.load.workload import Workload, load_workload

BASELINE = "eager fp32"
# Beside those that every result names.
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf")
# Compiling ResNet-50 takes minutes on two busy cores.
BUILD_LIMIT_S = 1800.0


@dataclass(frozen=True)
class EnginesChoices:
    """What the user asked for; see `offpath bench engines --help`.

    Attributes:
        engines: `openvino` for all its precisions, `openvino:int8` for one; empty for all.
        processes, threads: processes that run at the same time, threads of each.
    """

    models: tuple[str, ...]
    engines: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    rounds: int
    seconds: float
    processes: int
    threads: int
    device: str
    workload: str
    seed: int
    command: str


def run_engines(
    choices: EnginesChoices,
    observer: Observer,
    save: Callable[[Run], None],
    earlier: Run | None = None,
) -> Run:
    """Runs a whole benchmark.

    Args:
        save: called with everything measured so far.
        earlier: rounds of a run to be continued, perhaps with other engines and models.

    Raises:
        ExpectedError: wrong choices, nothing that can run, an unlike earlier run.
    """
    chosen = choose_variants(choices.engines)
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    run = begin_run(choices, workload)

    def combined() -> Run:
        return run if earlier is None else continue_run(earlier, run)

    combined()
    with work_folder(lambda: bool(run.failures)) as folder:
        with builder("preparation", folder / "survey.log") as process:
            reasons = process.ask("survey", variants=chosen, device=choices.device)
        runnable, not_run = drop_missing(chosen, reasons)
        run.not_run.update(not_run)
        engines = Engines(choices, runnable, run, observer)
        engines.prepare_models(workload.paths[0].parent, folder)
        schedule = Schedule(choices.rounds)
        runner = Runner(engines, run, schedule, observer, lambda: save(combined()))
        runner.prepare(folder)
        runner.run_rounds()
    return combined()


def begin_run(choices: EnginesChoices, workload: Workload) -> Run:
    """A run without rows."""
    host = describe_host()
    return Run(
        experiment=Engines.name,
        command=choices.command,
        settings={
            "seconds": choices.seconds,
            "processes": choices.processes,
            "threads": choices.threads,
            "device": choices.device,
            "photographs": workload.identity,
            "parity_bound": HandlerConfig().parity_bound,
        },
        workloads={
            model: {"name": workload.name, **workload.facts} for model in choices.models
        },
        host={**host, "packages": {**host["packages"], **read_versions(PACKAGES)}},
    )


def continue_run(earlier: Run, run: Run) -> Run:
    """The rounds of both, which may have measured other engines and models."""
    variants = {**earlier.variants, **run.variants}
    workloads = {**earlier.workloads, **run.workloads}
    return merge_runs(
        replace(earlier, variants=variants, workloads=workloads),
        replace(run, variants=variants, workloads=workloads),
    )


def choose_variants(asked: Sequence[str]) -> list[str]:
    """The variants that were asked for, the baseline always and first.

    Args:
        asked: `engine` or `engine:precision`; empty for all.

    Raises:
        ExpectedError: an unknown name.
    """
    known = [f"{engine}:{p}" for engine, every in PRECISIONS.items() for p in every]
    chosen = [BASELINE]
    for name in asked or PRECISIONS:
        matching = [one for one in known if name in (one, one.partition(":")[0])]
        if not matching:
            raise WrongOption(
                f"engine {name!r} is unknown; expected an engine (`openvino`) or one with its"
                f" precision: {', '.join(known)}"
            )
        chosen += [one.replace(":", " ") for one in matching]
    return list(dict.fromkeys(chosen))


def drop_missing(
    chosen: Sequence[str], reasons: Mapping[str, str | None]
) -> tuple[list[str], dict[str, str]]:
    """The variants that can run here, and why others cannot.

    Args:
        reasons: variant -> why it cannot, None for those that can.

    Raises:
        ExpectedError: nothing but the baseline is left of several.
    """
    not_run = {name: reason for name in chosen if (reason := reasons[name])}
    left = [name for name in chosen if name not in not_run]
    if len(left) <= 1 < len(chosen):
        raise ExpectedError(
            "none of the engines asked for can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return left, not_run


def builder(title: str, log_file: Path) -> ChildProcess:
    """A process that prepares or builds; it may use all cores."""
    return ChildProcess(CHILD, title, {}, log_file)


class Engines:
    """The experiment; a variant that fails with one model goes on with the others."""

    name = "engines"

    def __init__(
        self,
        choices: EnginesChoices,
        variants: Sequence[str],
        run: Run,
        observer: Observer,
    ) -> None:
        self._choices, self._run, self._observer = choices, run, observer
        self.variants: Sequence[Variant] = [
            Variant(name, dict(zip(("engine", "precision"), name.split())))
            for name in variants
        ]
        self.cells: Sequence[Cell] = [
            Cell(model, batch_size=size)
            for model in choices.models
            for size in (0, *choices.batch_sizes)
        ]
        run.variants.update({one.name: dict(one.facts) for one in self.variants})
        # Model -> what its processes are told; (variant, model) -> its artefact's figures.
        self._orders: dict[str, dict[str, Any]] = {}
        self._built: dict[tuple[str, str], Figures] = {}
        self._broken: set[tuple[str, str]] = set()

    def prepare_models(self, photographs: Path, folder: Path) -> None:
        """Writes each model's weights and reference answers."""
        for model in self._choices.models:
            self._observer.on_step(f"{model}: weights and reference answers")
            order: dict[str, Any] = {"model": model, "folder": str(folder / model)}
            (folder / model).mkdir()
            with builder(model, folder / model / "prepare.log") as process:
                answer = process.ask("prepare", photographs=str(photographs), **order)
            self._orders[model] = {
                **order,
                **answer,
                "device": self._choices.device,
                "max_batch": max(self._choices.batch_sizes),
            }

    def prepare(self, variant: Variant, folder: Path) -> None:
        """See `Experiment`: builds the variant's artefact of every model."""
        folder.mkdir()
        for model, order in self._orders.items():
            if variant.facts["engine"] == "eager":
                continue
            begin_s = time.monotonic()
            with self._excusing(0, variant, model):
                with builder("build", folder / f"{model}.log") as process:
                    asked: dict[str, Any] = {**order, **variant.facts}
                    built = process.ask("build", limit_s=BUILD_LIMIT_S, **asked)
                build_s = round(time.monotonic() - begin_s, 1)
                self._built[variant.name, model] = {**built, "build_s": build_s}

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[Team, Figures]]:
        """See `Experiment`; processes start with the first cell of each model."""
        with Team(self._choices.processes, self._choices.threads) as team:
            yield team, {}

    def measure(self, target: Team, cell: Cell, turn: Turn) -> Figures:
        """See `Experiment`."""
        key = (turn.variant.name, cell.workload)
        if key in self._broken:
            return {}
        with self._excusing(turn.round, turn.variant, cell.workload):
            if cell.batch_size:
                return target.forward(cell.batch_size, self._choices.seconds)
            order = {**self._orders[cell.workload], **turn.variant.facts}
            started = target.start(order)
            if turn.round > 0:
                return started
            checked = {} if turn.variant.name == BASELINE else target.check()
            return {**started, **checked, **self._built.get(key, {})}
        return {}

    @contextmanager
    def _excusing(self, round_: int, variant: Variant, model: str) -> Iterator[None]:
        """Leaves a variant of one model out from now on when it fails."""
        try:
            yield
        except ExpectedError as error:
            self._broken.add((variant.name, model))
            name, reason = f"{variant.name} of {model}", str(error)
            # A traceback, or the end of a log, is shown once.
            first = reason.partition("\n")[0]
            self._run.failures.append(Failure(round_, name, first))
            self._observer.on_failure(name, reason)
