"""Runs an unpacked archive's handler in a process of its own, loaded as TorchServe loads it.

Its arguments are a folder, the handler, and images, whose scores it returns; without images it
describes the handler. The result is JSON on stdout; an exception ends the process. What
the archive's code prints goes to stderr, and it gets no network.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from ts.model_loader import TsModelLoader
from ts.utils.util import list_classes_from_module

from offpath.archive.no_network import network_refused
from offpath.archive.sources.transforms import read_transforms
from offpath.archive.torchserve_metrics import make_default_metrics
from offpath.errors import WrongOption
from offpath.handler.process.lazy_imports import unused_imports_deferred

with unused_imports_deferred("torch_tensorrt"):
    from ts.torch_handler.image_classifier import ImageClassifier
    from ts.torch_handler.vision_handler import VisionHandler

# What a subclass may change.
CONVERTED = {
    *("image_processing", "topk", "set_max_result_classes", "get_max_result_classes"),
    "postprocess",
}


def describe(handler: str) -> dict[str, Any]:
    """Returns settings, name of the class, and whether its postprocess is its own.

    Raises:
        WrongOption: it changes more than can be converted.
    """
    module = importlib.import_module(Path(handler).stem)
    classes = list_classes_from_module(module)
    if ":" in handler or hasattr(module, "handle") or len(classes) != 1:
        raise WrongOption("it is no class, or one of several")
    (theirs,) = classes
    base = [one for one in theirs.__mro__ if one.__module__.startswith("ts.")]
    if not base or base[0] not in (ImageClassifier, VisionHandler):
        raise WrongOption(f"{theirs.__name__} is no subclass of ImageClassifier or VisionHandler")
    made = theirs()
    own = {name for one in theirs.__mro__ if one not in base for name in vars(one)}
    known = {name for one in base for name in vars(one) if not name.startswith(("__", "_abc"))}
    changed = known & (own | vars(made).keys()) - CONVERTED
    if changed:
        raise WrongOption(f"{theirs.__name__} overrides {', '.join(sorted(changed))}")
    settings = read_transforms(getattr(made, "image_processing", None))
    settings["top_k"] = getattr(made, "topk", ImageClassifier.topk)
    has_postprocess = theirs.postprocess is not ImageClassifier.postprocess
    return {"settings": settings, "name": theirs.__name__, "has_postprocess": has_postprocess}


def score(folder: str, handler: str, files: list[str]) -> list[list[float] | str]:
    """Returns the probabilities of each image, on which it tries the postprocess; or an error."""
    metrics = make_default_metrics()
    service = TsModelLoader().load("model", folder, handler, None, 1, None, True, metrics)
    theirs, scores = service._entry_point.__self__, []
    theirs.context = None  # a converted handler has none
    for file in files:
        try:
            outputs = theirs.inference(theirs.preprocess([{"body": Path(file).read_bytes()}]))
            if type(theirs).postprocess is not ImageClassifier.postprocess:
                (reply,) = theirs.postprocess(outputs)
                if isinstance(reply, str):
                    raise ValueError("its postprocess returns a text, which is sent in quotes")
                json.dumps(reply)
            scores += torch.softmax(outputs.float(), 1).tolist()
        except Exception as error:
            scores.append(f"{type(error).__name__}: {error}"[:200])
    return scores


if __name__ == "__main__":
    result = os.dup(1)
    os.dup2(2, 1)
    folder, handler, *files = sys.argv[1:]
    # As for TorchServe's worker, the archive comes first, and is the working folder.
    sys.path[0] = folder
    os.chdir(folder)
    with network_refused():
        found: Any = score(folder, handler, files) if files else describe(handler)
    with os.fdopen(result, "w") as out:
        json.dump(found, out)
