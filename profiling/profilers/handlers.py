"""The handlers that can be profiled: ours, the baselines, any archive, any class of the user's.

This module checks names and builds archives in the profiler's process. `handler_process.py` loads
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
from offpath.errors import WrongOption
from offpath.handler.serving_settings import name_keys

OFFPATH, STOCK, NAIVE = "offpath", "stock", "naive"
BUILT_IN = (OFFPATH, STOCK, NAIVE)
DEFAULT_BATCH_SIZE = 8
# A class of the user's, in a module of its own: TorchServe's loader expects exactly one class. The
# user's file stays in place, so reports name its lines, and it may import its neighbours.
ENTRY = "profiled_entry.py"
ENTRY_SOURCE = """\
import importlib, sys
sys.path.insert(1, {folder!r})
class {name}(importlib.import_module({module!r}).{name}): pass
"""


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


@dataclass(frozen=True)
class HandlerSpec:
    """Everything that a process needs to load one handler.

    Attributes:
        folder: the unzipped archive.
        entry: the manifest's handler, in the form that `ts.model_loader` takes.
    """

    name: str
    folder: str
    entry: str
    batch_size: int = DEFAULT_BATCH_SIZE
    environ: dict[str, str] = field(default_factory=dict)


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
        handler: dict[str, Any] = {"threads": 1}
        if has_log:
            from offpath.profiling.servers.put_store import PREDICTION_LOG

            handler["prediction_log"] = dict(PREDICTION_LOG)
        archive = build_handler(
            choice.source, model, folder, 1, handler, **name_keys(batch_size=batch_size)
        )
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
