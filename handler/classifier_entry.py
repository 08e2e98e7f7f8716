"""The one class that TorchServe loads (ts/model_loader.py: exactly one class per entry module)."""

from __future__ import annotations

from handler.lazy_imports import unused_imports_deferred

with unused_imports_deferred():
    from handler import classifier


class Classifier(classifier.OffpathClassifier):
    """Entry point of the archive; everything is in handler/classifier.py."""
