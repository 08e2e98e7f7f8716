"""A handler loaded as TorchServe's worker loads it, with a real context and metrics, no server.

Runs in a process of its own: the archive's folder goes first on the path, and what a handler does
to its process (threads, allocator, logging) touches nobody else.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from offpath.handler.errors import WrongOption
from offpath.profiling.profilers.handlers import HandlerSpec

MODEL_NAME = "classifier"


@dataclass
class LoadedHandler:
    """A handler that is ready for requests.

    Attributes:
        entry: what the worker calls: `entry(rows, context)`.
        context: TorchServe's.
        instance: the object whose method `entry` is; None for a function.
        module: where the handler is defined.
    """

    entry: Callable[[list[dict[str, Any]], Any], Any]
    context: Any
    instance: Any
    module: ModuleType


def load_handler(spec: HandlerSpec) -> LoadedHandler:
    """Loads the handler and initialises it.

    Raises:
        WrongOption: the class is not in its file. Whatever the handler raises passes through.
    """
    enter_worker(spec.folder)
    import torch

    torch.set_num_threads(spec.threads)
    if spec.class_file:
        return _load_class(spec)
    from ts.model_loader import ModelLoaderFactory

    service = ModelLoaderFactory.get_model_loader().load(
        MODEL_NAME,
        spec.folder,
        spec.entry,
        spec.gpu_id,
        spec.batch_size,
        None,
        True,
        make_metrics(),
    )
    service.set_cl_socket(None)
    entry = service._entry_point
    instance = getattr(entry, "__self__", None)
    module = sys.modules[(type(instance) if instance else entry).__module__]
    return LoadedHandler(entry, service.context, instance, module)


def enter_worker(folder: str) -> None:
    """Makes this process what TorchServe makes of a worker: folder, import path, log on stdout."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)


def make_metrics() -> Any:
    """TorchServe's metrics cache, with the metrics that it declares by default."""
    import ts
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    declared = Path(ts.__file__).parent / "configs" / "metrics.yaml"
    metrics = MetricsCacheYamlImpl(str(declared))
    metrics.initialize_cache()
    return metrics


def _load_class(spec: HandlerSpec) -> LoadedHandler:
    """A class from the user's own file, which stays where it is: reports name its lines."""
    from ts.service import Service

    module = _import_file(Path(spec.class_file))
    handler_class = getattr(module, spec.class_name, None)
    if not isinstance(handler_class, type):
        found = [name for name, value in vars(module).items() if _is_own(value, module)]
        raise WrongOption(
            f"class {spec.class_name!r} is not in {Path(spec.class_file).name!r}; found:"
            f" {', '.join(found) or 'no class'}"
        )
    if not callable(getattr(handler_class, "handle", None)):
        raise WrongOption(
            f"class {spec.class_name!r} has no method handle(data, context): it is no"
            " TorchServe handler"
        )
    manifest = json.loads(Path(spec.folder, "MAR-INF", "MANIFEST.json").read_text())
    instance = handler_class()
    service = Service(
        MODEL_NAME,
        spec.folder,
        manifest,
        instance.handle,
        spec.gpu_id,
        spec.batch_size,
        True,
        make_metrics(),
    )
    service.set_cl_socket(None)
    if hasattr(instance, "initialize"):
        instance.initialize(service.context)
    return LoadedHandler(instance.handle, service.context, instance, module)


def _is_own(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _import_file(path: Path) -> ModuleType:
    # Its neighbours, which it may import, behind the archive's files.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise WrongOption(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
