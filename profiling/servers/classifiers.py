"""Classifiers for any Python server: the stock way and our way.

A server's own program only receives bytes and returns answers. The work in between is here, so that
all servers do the same work and only the serving differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.contract import Request
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.choose import choose_precision
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.outputs import activate
from offpath.handler.pipeline import Pipeline, set_threads
from offpath.profiling.load.model_under_test import (
    ModelUnderTest,
    load_model,
    read_image,
)

# Label -> probability, best first.
Labels = dict[str, float]
Classify = Callable[[Sequence[bytes]], list[Labels]]


def find_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_classifier(kind: str, model: str, threads: int, max_batch: int) -> Classify:
    """Loads the model under test into this process; `kind` is one of CLASSIFIERS."""
    set_threads(threads)
    return CLASSIFIERS[kind](load_model(model), max_batch)


def load_pillow(model: ModelUnderTest, max_batch: int) -> Classify:
    """Loads Pillow, torchvision's transforms and an fp32 forward, as all servers' examples do."""
    prepare, finish = model.make_transforms(), make_finish(model)

    def classify(photographs: Sequence[bytes]) -> list[Labels]:
        images = [prepare(read_image(photograph)) for photograph in photographs]
        return finish(torch.stack(images))

    return classify


def load_offpath_decode(model: ModelUnderTest, max_batch: int) -> Classify:
    """Loads our handler's pipeline: DCT-scaled decode, fast resize, eager forward.

    The precision is our server's on this machine: bf16 where the processor multiplies it.
    """
    config, device = model.config, find_device()
    module = model.source.module.eval().to(device)
    engine = EagerEngine(module, config, device, choose_precision(device))
    runner = BatchRunner(engine, config, device, max_batch)
    labels, threads = dict(enumerate(model.labels)), torch.get_num_threads()
    pipeline = Pipeline(config, runner, labels, threads)
    pipeline.runner.warm_up()

    def classify(photographs: Sequence[bytes]) -> list[Labels]:
        requests = [Request(photograph) for photograph in photographs]
        batch = pipeline.predict(pipeline.read_batch(requests))
        for item in batch.items:
            if item.error is not None:
                raise item.error
        return [dict(item.predictions) for item in batch.items]

    return classify


def make_finish(model: ModelUnderTest) -> Callable[[torch.Tensor], list[Labels]]:
    """Returns forward, activation and the best classes by name, as one function."""
    device = find_device()
    module = model.source.module.eval().to(device)
    labels: npt.NDArray[np.object_] = np.array(model.labels, dtype=object)

    def finish(images: torch.Tensor) -> list[Labels]:
        with torch.inference_mode():
            probabilities = activate(module(images.to(device)), model.config.activation)
            best = torch.topk(probabilities, model.top_k, dim=1)
        indices = best.indices.cpu().numpy()
        return [
            dict(zip(labels[classes], values))
            for classes, values in zip(indices, best.values.tolist())
        ]

    return finish


CLASSIFIERS: dict[str, Callable[[ModelUnderTest, int], Classify]] = {
    "pillow": load_pillow,
    "offpath-decode": load_offpath_decode,
}
