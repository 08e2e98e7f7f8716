"""The one class that TorchServe loads (ts/model_loader.py: exactly one class per entry module)."""

from __future__ import annotations

import os
import sys

import offpath


def use_own_copy(folder: str) -> None:
    """Makes `offpath.handler` the copy in the archive, whatever this process has imported."""
    own = os.path.join(folder, "offpath")
    if os.path.isdir(own):
        offpath.__path__.insert(0, own)
        for name in [n for n in sys.modules if n.startswith("offpath.handler")]:
            del sys.modules[name]


use_own_copy(os.path.dirname(os.path.abspath(__file__)))

from offpath.handler.lazy_imports import unused_imports_deferred  # noqa: E402

with unused_imports_deferred():
    from offpath.handler import classifier


class Classifier(classifier.OffpathClassifier):
    """Entry point of the archive; everything is in handler/classifier.py."""
