"""`offpath archive --handler my_handler.py`: a checked subclass of our handler with its file."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from offpath.archive.sources.definition import check_shadowing
from offpath.handler.errors import WrongOption
from offpath.handler.process.lazy_imports import unused_imports_deferred


@dataclass(frozen=True)
class OwnHandler:
    """A file with a subclass of OffpathClassifier, and the class's name."""

    file: Path
    class_name: str

    @property
    def mark(self) -> str:
        """What `offpath.handler.custom_handler.find_handler` reads in the archive."""
        return f"{self.file.stem}:{self.class_name}"


def load_own_handler(named: str) -> OwnHandler:
    """Imports what the user named, as the worker will.

    Args:
        named: `my_handler.py`, or `my_handler.py:Class` where it defines several.

    Raises:
        WrongOption: no such file, a name that cannot be imported, an import that fails, or not
            one subclass of OffpathClassifier.
    """
    path_text, _, class_name = named.partition(":")
    file = Path(path_text)
    if not file.is_file() or file.suffix != ".py":
        raise WrongOption(f"--handler {named!r}: no Python file {path_text!r}")
    if not file.stem.isidentifier():
        raise WrongOption(
            f"--handler {file.name}: not a name that Python imports; rename the file"
        )
    check_shadowing(file)
    found = _find_subclasses(file)
    if class_name and class_name not in found:
        raise WrongOption(
            f"--handler {named!r}: {file.name} defines "
            f"{', '.join(found) or 'no subclass of OffpathClassifier'}"
        )
    if not class_name and len(found) != 1:
        raise WrongOption(
            f"--handler {file.name}: expected one subclass of OffpathClassifier, found "
            f"{', '.join(found) or 'none'}"
            + (f"; name one: {file.name}:{found[0]}" if found else "")
        )
    return OwnHandler(file, class_name or found[0])


def _find_subclasses(file: Path) -> list[str]:
    # TorchServe's modules warn of packages that are not there, TensorRT's for instance.
    logging.getLogger("ts").setLevel(logging.ERROR)
    with unused_imports_deferred():
        from offpath.handler.classifier import OffpathClassifier
    folder = str(file.resolve().parent)
    # Its neighbours go along by --extra-file; here they are found where they lie.
    sys.path.insert(0, folder)
    before = sys.modules.pop(file.stem, None)
    try:
        module = importlib.import_module(file.stem)
    except (Exception, SystemExit) as error:
        raise WrongOption(
            f"--handler {file.name} fails on import: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(folder)
        sys.modules.pop(file.stem, None)
        if before is not None:
            sys.modules[file.stem] = before
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, OffpathClassifier)
        and value.__module__ == file.stem
    ]
