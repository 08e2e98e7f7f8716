"""The entry module of an archive: TorchServe loads its only class (ts/model_loader.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import offpath

PACKAGE = Path(__file__).resolve().parent / "offpath"


def use_archived_copy(package: Path) -> None:
    """Makes `offpath.handler` the copy in the archive, even if this process imported another."""
    if package.is_dir():
        offpath.__path__.insert(0, str(package))
        for name in [n for n in sys.modules if n.startswith("offpath.handler")]:
            del sys.modules[name]


use_archived_copy(PACKAGE)

from offpath.handler.process.lazy_imports import unused_imports_deferred  # noqa: E402

with unused_imports_deferred():
    from offpath.handler import classifier
from offpath.handler.custom_handler import find_handler  # noqa: E402

BASE = find_handler(PACKAGE, classifier.OffpathClassifier)


class Classifier(BASE):  # type: ignore[misc, valid-type]
    """The archive's entry point: the class in handler/classifier.py, or a custom subclass of it."""
