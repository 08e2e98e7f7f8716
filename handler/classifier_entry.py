"""The entry module of an archive; TorchServe loads its only class (ts/model_loader.py)."""

from __future__ import annotations

import contextlib
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

from offpath.handler.classifier import OffpathClassifier  # noqa: E402
from offpath.handler.custom_handler import find_handler  # noqa: E402
from offpath.handler.process.lazy_imports import unused_imports_deferred  # noqa: E402

# Most models import torchvision, which takes two seconds without this.
with contextlib.suppress(ImportError):
    import offpath.handler.process.light_torchvision  # noqa: F401

# What any server loads: our classifier, or a custom subclass of it.
BASE = find_handler(PACKAGE, OffpathClassifier)

if __name__ == "classifier_entry":  # TorchServe's name for this module; other servers take BASE
    with unused_imports_deferred():
        from offpath.handler.on_torchserve import make_handler

    class Classifier(make_handler(BASE)):  # type: ignore[misc]
        """The handler of this archive on TorchServe."""
