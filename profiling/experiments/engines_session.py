"""One run of the engines' benchmark: what can run here, building, rounds of measured processes.

This process never imports torch: pages of its libraries that it shared with the measured ones would
be taken off their proportional memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.child_process import ChildProcess
from offpath.profiling.core.host import describe_host, read_versions
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.engines_choice import (
    EnginesChoices,
    Subject,
    choose_variants,
    drop_missing,
    make_subject,
)
from offpath.profiling.experiments.engines_result import (
    BASELINE,
    Artefact,
    EngineFailure,
    EnginesResult,
    merge_engines,
)
from offpath.profiling.experiments.engines_team import Team
from offpath.profiling.load.workload import Workload, load_workload

# Compiling ResNet-50 takes minutes on two busy cores.
BUILD_LIMIT_S = 1800.0
# Beside those that every result names.
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf")


class Observer(Protocol):
    """Told how the run goes on."""

    def on_step(self, text: str) -> None:
        """A step begins."""

    def on_progress(self, done: int, total: int) -> None:
        """Variants built or measured so far, of all."""

    def on_failure(self, reason: str) -> None:
        """A variant is left out from now on; the reason begins with its name."""


def run_engines(
    choices: EnginesChoices,
    observer: Observer,
    save: Callable[[EnginesResult], None],
    earlier: EnginesResult | None = None,
) -> EnginesResult:
    """Runs a whole benchmark.

    Args:
        save: called with all finished rows, after each variant's round.
        earlier: rounds of a run to be continued; unlike ones are refused before anything is built.

    Raises:
        ExpectedError: wrong choices, nothing that can run, an unlike earlier run.
    """
    variants = choose_variants(choices.engines)
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    result = begin_result(choices, workload)
    if earlier is not None:
        merge_engines(earlier, result)
    session = Session(choices, result, observer, save, earlier)
    with work_folder(lambda: bool(result.failures)) as folder:
        subjects = session.prepare_all(variants, workload, folder)
        session.build_all(subjects)
        session.measure_all(subjects)
    return session.combined()


def begin_result(choices: EnginesChoices, workload: Workload) -> EnginesResult:
    """A result without measurements."""
    host = describe_host()
    return EnginesResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host={**host, "packages": {**host["packages"], **read_versions(PACKAGES)}},
        settings=choices.settings,
        workload={"name": workload.name, **workload.facts},
    )


class Session:
    """What the steps of a run share."""

    def __init__(
        self,
        choices: EnginesChoices,
        result: EnginesResult,
        observer: Observer,
        save: Callable[[EnginesResult], None],
        earlier: EnginesResult | None,
    ) -> None:
        self.choices, self.result, self.observer = choices, result, observer
        self._save, self._earlier = save, earlier

    def combined(self) -> EnginesResult:
        """This run's rows, after those of an earlier one."""
        if self._earlier is None:
            return self.result
        return merge_engines(self._earlier, self.result)

    def prepare_all(
        self, variants: Sequence[str], workload: Workload, folder: Path
    ) -> list[Subject]:
        """What can run here, of all models, ready to be built."""
        self.observer.on_step("what can run here")
        with builder("preparation", folder) as process:
            answer = process.ask(
                "survey", variants=variants, device=self.choices.device
            )
            self.result.parity_bound = answer["parity_bound"]
            runnable, not_run = drop_missing(variants, answer["reasons"])
            self.result.not_run.update(not_run)
            photographs = workload.paths[0].parent
            return [
                subject
                for model in self.choices.models
                for subject in self._prepare(
                    process, model, runnable, photographs, folder / model
                )
            ]

    def _prepare(
        self,
        process: ChildProcess,
        model: str,
        variants: Sequence[str],
        photographs: Path,
        folder: Path,
    ) -> list[Subject]:
        """Writes a model's weights and reference answers."""
        self.observer.on_step(f"{model}: weights and reference answers")
        folder.mkdir()
        answer = process.ask(
            "prepare", model=model, photographs=str(photographs), folder=str(folder)
        )
        return [
            make_subject(self.choices, model, name, answer, folder) for name in variants
        ]

    def build_all(self, subjects: Sequence[Subject]) -> None:
        """Builds every artefact; a variant that cannot be built is left out."""
        for subject in subjects:
            if subject.order["engine"] != "eager":
                self._attempt(0, subject, self._build)
                self._save(self.combined())

    def measure_all(self, subjects: Sequence[Subject]) -> None:
        """Rounds: each model's variants in turn, then again."""
        total = self.choices.rounds * len(subjects)
        for round_ in range(self.choices.rounds):
            for index, subject in enumerate(subjects):
                if not self._has_failed(subject):
                    self._attempt(round_, subject, self._measure)
                    self._save(self.combined())
                self.observer.on_progress(round_ * len(subjects) + index + 1, total)

    def _has_failed(self, subject: Subject) -> bool:
        return any(
            (failure.model, failure.variant) == (subject.model, subject.variant)
            for failure in self.result.failures
        )

    def _attempt(
        self, round_: int, subject: Subject, work: Callable[[int, Subject], None]
    ) -> None:
        try:
            work(round_, subject)
        except ExpectedError as error:
            failure = EngineFailure(round_, subject.model, subject.variant, str(error))
            self.result.failures.append(failure)
            self.observer.on_failure(str(error))

    def _build(self, round_: int, subject: Subject) -> None:
        self.observer.on_step(f"{subject.model}: {subject.variant}: build")
        begin_s = time.monotonic()
        with builder(subject.title, subject.folder) as process:
            answer = process.ask("build", limit_s=BUILD_LIMIT_S, **subject.order)
        self.result.artefacts.append(
            Artefact(
                round_,
                subject.model,
                subject.variant,
                answer["size_bytes"],
                round(time.monotonic() - begin_s, 1),
            )
        )

    def _measure(self, round_: int, subject: Subject) -> None:
        label = f"round {round_ + 1}/{self.choices.rounds}"
        self.observer.on_step(f"{label}: {subject.model}: {subject.variant}")
        with Team(round_, subject, self.choices) as team:
            self.result.loads.append(team.load())
            if round_ == 0 and subject.variant != BASELINE:
                self.result.parities.append(team.check())
            # A round counts as a whole: a variant that dies in it leaves no window of it.
            self.result.windows.extend([*team.measure(), *team.measure_wide()])


def builder(title: str, folder: Path) -> ChildProcess:
    """A process that prepares or builds; it may use all cores."""
    return ChildProcess(
        "offpath.profiling.experiments.engines_builder", title, {}, folder / "build.log"
    )
