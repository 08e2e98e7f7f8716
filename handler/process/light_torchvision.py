"""Imports torchvision without torch._dynamo, which takes 2 s; the name is for preloads."""

from offpath.handler.process.lazy_imports import unused_imports_deferred

with unused_imports_deferred():
    import torchvision  # noqa: F401
