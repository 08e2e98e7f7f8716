"""The experiment that profiles handlers, each in a process of its own."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.profiling.core.observer import Observer
from offpath.profiling.core.run import Cell, Failure, Run
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handler_process import CPROFILE, FLAME, Job, profile_handler
from offpath.profiling.profilers.handlers import (
    NAIVE,
    HandlerChoice,
    choose_handlers,
    prepare_handler,
)
from offpath.profiling.profilers.profile_report import FUNCTIONS, LINES, list_batches

FILE_SUFFIXES = {CPROFILE: ".prof", FLAME: "-flame.html"}
EXPERIMENT = "profile-"
DEFAULT_MODEL = "near-free"
# Requests before measuring starts.
WARM_UP = 80


@dataclass(frozen=True)
class ProfileChoices:
    """The choices for a profile of handlers.

    Attributes:
        kind: STAGES, CPROFILE, LINES or FLAME.
        model: None for that of the archive in `mars`, or else DEFAULT_MODEL.
        batch_size: None for each handler's own default.
        output: folder for files of single handlers.
    """

    kind: str
    handlers: tuple[str, ...]
    mars: tuple[Path, ...]
    model: str | None
    requests: int
    batch_size: int | None
    images: str
    command: str
    output: Path = Path()

    @property
    def shared_model(self) -> str:
        """The model of all handlers that are no archives, as `load_model` takes it."""
        return self.model or (str(self.mars[0]) if self.mars else DEFAULT_MODEL)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": Path(self.shared_model).name,
            "requests": self.requests,
            "batch_size": self.batch_size,
            "warm_up": WARM_UP,
        }

    def name_file(self, handler: str) -> Path | None:
        suffix = FILE_SUFFIXES.get(self.kind)
        return self.output / f"{handler}{suffix}" if suffix else None


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
    for one in handlers:
        model = Path(one.source if one.is_archive else choices.shared_model).name
        run.variants[one.name] = {"model": model, "batch_size": one.batch_size(choices.batch_size)}
    temporary = tempfile.TemporaryDirectory(prefix="offpath-profile-")
    with temporary as folder, running_s3(handlers, observer) as s3_environ:
        for done, handler in enumerate(handlers):
            observer.on_progress(done, len(handlers))
            try:
                add_handler(run, choices, handler, s3_environ, workload, Path(folder), observer)
            except ExpectedError as error:
                run.failures.append(Failure(0, handler.name, str(error)))
                observer.on_failure(handler.name, str(error))
            save(run)
    if not run.rows:
        raise ExpectedError(run.failures[0].reason)
    return run


@contextlib.contextmanager
def running_s3(
    handlers: Sequence[HandlerChoice], observer: Observer
) -> Iterator[Mapping[str, str]]:
    """Runs a stand-in for S3 if a handler is the naive one; yields variables that name it.

    Our handler ships its prediction log to it too, so both put each prediction.
    """
    if not any(one.source == NAIVE for one in handlers):
        yield {}
        return
    from offpath.profiling.servers.put_store import run_put_store

    observer.on_step("a stand-in for S3")
    with run_put_store() as store:
        yield store.env


def add_handler(
    run: Run,
    choices: ProfileChoices,
    handler: HandlerChoice,
    s3_environ: Mapping[str, str],
    workload: Workload,
    folder: Path,
    observer: Observer,
) -> None:
    name, size = handler.name, handler.batch_size(choices.batch_size)
    observer.on_step(f"{name}: build")
    spec = prepare_handler(handler, choices.shared_model, size, s3_environ, folder / name)
    batches, file = math.ceil(choices.requests / size), choices.name_file(name)
    job = Job(
        choices.kind,
        spec,
        tuple(str(path.resolve()) for path in workload.paths),
        math.ceil(WARM_UP / size),
        batches,
        "" if file is None else str(file.resolve()),
    )
    observer.on_step(f"{name}: {batches} batches of {size}")
    profile = profile_handler(job, folder / name)
    run.add(0, name, Cell(workload.name, 0, size), list_batches(profile.batches))
    for kind, samples in ((FUNCTIONS, profile.functions), (LINES, profile.lines)):
        if samples:
            run.details.setdefault(kind, {})[name] = [asdict(sample) for sample in samples]
    if profile.refused:
        run.warnings.append(f"{name} refused {profile.refused} requests, whose time says little")
