"""The experiment that profiles handlers, each in a process of its own."""

from __future__ import annotations

import math
import symtable
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.serving_settings import name_keys
from offpath.profiling.core.run import Cell, Observer, Run
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handler_profilers import PROFILERS
from offpath.profiling.profilers.profile_report import FUNCTIONS, LINES, PREFIX, list_batches
from offpath.profiling.profilers.profiled_process import (
    DEFAULT_BATCH_SIZE,
    ENTRY,
    HandlerSpec,
    ProfileJob,
    profile_handler,
)
from offpath.profiling.servers.put_store import PREDICTION_LOG, Beside, run_put_store

OFFPATH, STOCK, NAIVE = "offpath", "stock", "naive"
BUILT_IN = (OFFPATH, STOCK, NAIVE)
# A class of the user's, in a module of its own: TorchServe's loader expects exactly one class. The
# user's file stays in place, so reports name its lines, and it may import its neighbours.
ENTRY_SOURCE = """\
import importlib, sys
sys.path.insert(1, {folder!r})
class {name}(importlib.import_module({module!r}).{name}): pass
"""
DEFAULT_MODEL = "near-free"
# Requests before measuring starts.
WARM_UP = 80


@dataclass(frozen=True)
class HandlerChoice:
    """A handler that the user chose.

    Attributes:
        name: its name in reports, unique in a run.
        source: one of BUILT_IN, the path of an archive, or `FILE:CLASS`.
    """

    name: str
    source: str
    is_archive: bool = False

    def batch_size(self, asked: int | None) -> int:
        """Returns the requests per batch: the chosen number, else what TorchServe would give."""
        return asked or (1 if self.source == NAIVE else DEFAULT_BATCH_SIZE)


def choose_handlers(names: tuple[str, ...], mars: tuple[Path, ...]) -> list[HandlerChoice]:
    """Checks the names before anything is built. Without any name, our handler is chosen.

    Raises:
        WrongOption: a name is unknown or given twice, a file does not exist, or named handlers have
            several archives whose model they could run.
    """
    if not names and not mars:
        names = (OFFPATH,)
    choices = [choose_handler(name) for name in names]
    for path in mars:
        check_archive(path)
        choices.append(HandlerChoice(path.stem, str(path), is_archive=True))
    seen = [choice.name for choice in choices]
    for name in seen:
        if seen.count(name) > 1:
            raise WrongOption(
                f"handler {name!r} is given {seen.count(name)} times; expected each handler once"
            )
    if names and len(mars) > 1:
        raise WrongOption(
            f"the handler {names[0]!r} runs the model of the archive beside it; expected one"
            f" archive, found {len(mars)}"
        )
    return choices


def choose_handler(name: str) -> HandlerChoice:
    if name in BUILT_IN:
        return HandlerChoice(name, name)
    file, separator, class_name = name.rpartition(":")
    if not separator or not class_name.isidentifier():
        raise WrongOption(
            f"unknown handler {name!r}; expected {', '.join(BUILT_IN)}, or FILE.py:CLASS"
            " for a class of your own"
        )
    if not Path(file).is_file():
        raise WrongOption(f"handler file {file!r} does not exist; expected FILE.py:CLASS")
    try:
        module = symtable.symtable(Path(file).read_text("utf-8"), file, "exec")
    except (SyntaxError, ValueError) as error:
        raise WrongOption(f"handler file {file!r} is not Python: {error}") from error
    if class_name not in module.get_identifiers():
        classes = [one.get_name() for one in module.get_children() if one.get_type() == "class"]
        found = ", ".join(classes) or "no class"
        raise WrongOption(f"handler file {file!r} has no class {class_name!r}; it has {found}")
    return HandlerChoice(class_name, f"{Path(file).resolve()}:{class_name}")


def check_archive(path: Path) -> None:
    """Raises WrongOption if an archive names no handler, or a handler that cannot be loaded."""
    mar = read_mar(path)
    if not mar.handler:
        raise WrongOption(
            f"archive {str(path)!r} has no handler in its manifest; build it with"
            " `offpath archive`, or with torch-model-archiver and its option --handler"
        )
    file = mar.handler.split(":")[0].split("/")[-1]
    module = file.removesuffix(".py")
    is_inside = any(f"{module}{end}" in mar.names for end in (".py", ".so"))
    if not is_inside and find_spec(f"ts.torch_handler.{module}") is None:
        raise WrongOption(
            f"archive {str(path)!r} names the handler {mar.handler!r}, which is neither in it"
            " nor one of TorchServe's own; build the archive again"
        )


def prepare_handler(
    choice: HandlerChoice,
    model: str,
    batch_size: int,
    s3_environ: Mapping[str, str],
    folder: Path,
) -> HandlerSpec:
    """Builds the handler's archive if it has none, and unzips it below `folder`.

    Takes some seconds, mostly in torch-model-archiver.

    Args:
        model: name of an embedded model, or an archive with the model.
        s3_environ: tells the naive handler and our log where a stand-in for S3 is; empty for none.
    """
    folder.mkdir(parents=True)
    # A user's archive may name the user's bucket, and a profile must not write there.
    has_log = bool(s3_environ) and choice.source == OFFPATH
    if choice.is_archive:
        archive = Path(choice.source)
    else:
        archive = build_handler(choice.source, model, batch_size, has_log, folder)
    mar = read_mar(archive)
    unpack_mar(mar, folder / "model")
    entry = mar.handler.split("/")[-1]
    if not choice.is_archive and choice.source not in BUILT_IN:
        entry = write_entry(choice.source, folder / "model")
    off = {} if has_log else {"OFFPATH_PREDICTION_LOG": "off"}
    environ = {"OMP_NUM_THREADS": "1", **s3_environ, **off}
    return HandlerSpec(choice.name, str(folder / "model"), entry, batch_size, environ)


def write_entry(source: str, folder: Path) -> str:
    """Writes ENTRY for `FILE:CLASS` and returns its name."""
    file, _, name = source.rpartition(":")
    path = Path(file)
    text = ENTRY_SOURCE.format(folder=str(path.parent), module=path.stem, name=name)
    (folder / ENTRY).write_text(text, encoding="utf-8")
    return ENTRY


def build_handler(
    source: str, model_name: str, batch_size: int, has_log: bool, folder: Path
) -> Path:
    """Builds the archive of a handler of BUILT_IN; any other gets the stock weights and labels."""
    # Imported here: torch takes seconds to import, and a wrong name is reported before that.
    from offpath.profiling.load.model_under_test import load_model
    from offpath.profiling.servers import archives

    model = load_model(model_name)
    if source == NAIVE:
        return archives.build_naive(model, {}, folder)
    log = {"prediction_log": dict(PREDICTION_LOG)} if has_log else {}
    config = archives.offpath_config(model, 1, threads=1, **log)
    config |= name_keys(batch_size=batch_size)
    if source == OFFPATH:
        return archives.build_offpath(model, config, folder)
    del config["handler"]
    return archives.build_stock(model, config, folder)


@dataclass(frozen=True)
class ProfileChoices:
    """The choices for a profile of handlers.

    Attributes:
        kind: a key of PROFILERS.
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
        suffix = PROFILERS[self.kind].suffix
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
        PREFIX + choices.kind,
        choices.command,
        choices.settings,
        workloads={workload.name: workload.facts},
    )
    for one in handlers:
        model = Path(one.source if one.is_archive else choices.shared_model).name
        run.variants[one.name] = {"model": model, "batch_size": one.batch_size(choices.batch_size)}
    # Our handler ships its prediction log to the naive one's stand-in for S3: both put predictions.
    has_store = any(one.source == NAIVE for one in handlers)
    beside = run_put_store() if has_store else nullcontext(Beside())
    with tempfile.TemporaryDirectory(prefix="offpath-profile-") as folder, beside as store:
        for done, handler in enumerate(handlers):
            observer.on_progress(done, len(handlers))
            with run.leaving_out(0, handler.name, observer):
                add_handler(run, choices, handler, store.env, workload, Path(folder), observer)
            save(run)
    if not run.rows:
        raise ExpectedError(run.failures[0].reason)
    return run


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
    job = ProfileJob(
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
