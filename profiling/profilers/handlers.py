"""The handlers that can be profiled: ours, the baselines, any archive, any class of the user's.

This module checks names and builds archives in the profiler's process. `handler_driver.py` loads
the handler, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.handler.errors import WrongOption

OFFPATH, STOCK, NAIVE = "offpath", "stock", "naive"
BUILT_IN = (OFFPATH, STOCK, NAIVE)
DEFAULT_BATCH_SIZE = 8


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


@dataclass(frozen=True)
class HandlerSpec:
    """Everything that a process needs to load one handler.

    Attributes:
        folder: the unzipped archive.
        entry: the manifest's handler, in the form that `ts.model_loader` takes.
        class_file, class_name: a class to load from its own file, instead of `entry`.
        threads: intra-op threads of torch, and decode threads of our handler.
        gpu_id: the GPU that TorchServe would give to the worker; None for the CPU.
    """

    name: str
    folder: str
    entry: str
    class_file: str = ""
    class_name: str = ""
    batch_size: int = DEFAULT_BATCH_SIZE
    threads: int = 1
    gpu_id: int | None = None
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedSettings:
    """The settings that all handlers of a run share.

    Attributes:
        batch_size: None for each handler's own default.
        prediction_log: our handler's `prediction_log:` section; None leaves the log off.
        s3_environ: tells the naive handler and our log where the S3 server is.
    """

    model: str
    batch_size: int | None
    threads: int
    gpu_id: int | None = None
    prediction_log: Mapping[str, Any] | None = None
    s3_environ: Mapping[str, str] = field(default_factory=dict)


def choose_handlers(names: tuple[str, ...], mars: tuple[Path, ...]) -> list[HandlerChoice]:
    """Checks the names before anything is built. Without any name, our handler is chosen.

    Raises:
        WrongOption: a name is unknown or given twice, or a file or class does not exist.
    """
    if not names and not mars:
        names = (OFFPATH,)
    choices = [_choose(name) for name in names]
    for path in mars:
        check_archive(path)
        choices.append(HandlerChoice(path.stem, str(path), is_archive=True))
    seen = [choice.name for choice in choices]
    for name in seen:
        if seen.count(name) > 1:
            raise WrongOption(
                f"handler {name!r} is given {seen.count(name)} times; expected each handler once"
            )
    return choices


def _choose(name: str) -> HandlerChoice:
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


def batch_size_of(choice: HandlerChoice, shared: SharedSettings) -> int:
    """Returns the requests per batch: the chosen number, else what TorchServe would give."""
    default = 1 if choice.source == NAIVE else DEFAULT_BATCH_SIZE
    return shared.batch_size or default


def describe_handler(choice: HandlerChoice, shared: SharedSettings) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": "its archive's model" if choice.is_archive else shared.model,
        "batch_size": batch_size_of(choice, shared),
        "threads": shared.threads,
        "device": "cpu" if shared.gpu_id is None else f"cuda:{shared.gpu_id}",
    }
    if choice.source == NAIVE:
        facts["s3_put_per_prediction"] = True
        if shared.batch_size is None:
            facts["batch_size_reason"] = (
                "batch settings in config.properties are silently ignored: TorchServe gives"
                " this handler one image at a time"
            )
    if choice.source == OFFPATH:
        facts["prediction_log"] = "off" if shared.prediction_log is None else "s3"
    return facts


def prepare_handler(choice: HandlerChoice, shared: SharedSettings, folder: Path) -> HandlerSpec:
    """Builds the handler's archive if it has none, and unzips it below `folder`.

    Takes some seconds, mostly in torch-model-archiver.
    """
    folder.mkdir(parents=True)
    batch_size = batch_size_of(choice, shared)
    if choice.is_archive:
        archive = Path(choice.source)
    else:
        log = dict(shared.prediction_log or {"uri": "off"})
        handler = {"threads": shared.threads, "prediction_log": log}
        archive = build_handler(
            choice.source, shared.model, folder, 1, handler, batchSize=batch_size
        )
    mar = read_mar(archive)
    unpack_mar(mar, folder / "model")
    class_file, class_name = "", ""
    if not choice.is_archive and choice.source not in BUILT_IN:
        class_file, _, class_name = choice.source.rpartition(":")
    return HandlerSpec(
        name=choice.name,
        folder=str(folder / "model"),
        entry=mar.handler.split("/")[-1],
        class_file=class_file,
        class_name=class_name,
        batch_size=batch_size,
        threads=shared.threads,
        gpu_id=shared.gpu_id,
        environ=make_environ(choice, shared),
    )


def build_handler(
    source: str,
    model_name: str,
    folder: Path,
    workers: int,
    handler: Mapping[str, Any] = MappingProxyType({}),
    **server: Any,
) -> Path:
    """Builds the archive of a handler of BUILT_IN; any other gets the stock weights and labels.

    `handler` and `server` are further settings of our handler and of TorchServe.
    """
    # Imported here: torch takes seconds to import, and a wrong name is reported before that.
    from offpath.profiling.load.model_under_test import load_model
    from offpath.profiling.servers import archives

    model = load_model(model_name)
    if source == NAIVE:
        return archives.build_naive(model, folder)
    config = {**archives.offpath_config(model, workers, **handler), **server}
    if source == OFFPATH:
        return archives.build_offpath(model, config, folder)
    del config["handler"]
    return archives.build_stock(model, config, folder)


def make_environ(choice: HandlerChoice, shared: SharedSettings) -> dict[str, str]:
    environ = {"OMP_NUM_THREADS": str(shared.threads), **shared.s3_environ}
    if choice.source != OFFPATH or shared.prediction_log is None:
        # A user's archive may name the user's bucket, and a profile must not write there.
        environ["OFFPATH_PREDICTION_LOG"] = "off"
    return environ
