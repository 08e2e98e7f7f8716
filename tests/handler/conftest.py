"""A pipeline over a trivial model, and a photograph encoded in every format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpath.archive import models
from offpath.archive.models.near_free import NearFree
from offpath.handler.classifier import encode_items
from offpath.handler.config import HandlerConfig
from offpath.handler.contract import ArchiveContext, Publish, Reply, Request, drop
from offpath.handler.image.decode import Pixels
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from tests.support.images import encode_variants
from tests.support.photographs import PHOTOGRAPHS, find_photograph

MakePipeline = Callable[..., Pipeline]


def make_runner(config: HandlerConfig, max_batch: int = 8, device: str = "cpu") -> BatchRunner:
    """Runs NearFree with seeded weights, large enough that images get different answers."""
    torch.manual_seed(0)
    model = NearFree().eval()
    with torch.no_grad():
        model.linear.weight.mul_(20)
    where = torch.device(device)
    return BatchRunner(EagerEngine(model.to(where), config, where), config, where, max_batch)


@pytest.fixture
def make_pipeline() -> MakePipeline:
    """`make_pipeline(threads=1, **settings)`; classes are named by their index."""

    def make(threads: int = 1, max_batch: int = 8, **settings: Any) -> Pipeline:
        config = HandlerConfig.from_mapping(settings, environ={})
        return Pipeline(config, make_runner(config, max_batch), {}, threads)

    return make


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    """One small photograph in every accepted format and many of their variants."""
    return encode_variants(find_photograph("coffee").rgb.resize((120, 80)))


def classify(pipeline: Pipeline, bodies: Iterable[Any]) -> list[Reply]:
    """Answers bodies as `OffpathClassifier` does, without an archive around the pipeline."""
    return encode_items(pipeline.predict(pipeline.read_batch([Request(body) for body in bodies])))


def make_context(folder: Path, publish: Publish = drop, **handler: Any) -> ArchiveContext:
    """Makes the context of a model in a folder."""
    manifest = {
        "model": {
            "modelName": "near-free",
            "modelVersion": "1.0",
            "modelFile": "near_free.py",
            "serializedFile": "weights.pt",
        }
    }
    settings = {"handler": handler, "minWorkers": 1, "maxWorkers": 1}
    properties = {"model_dir": str(folder), "gpu_id": None, "batch_size": 4}
    return ArchiveContext("near-free", manifest, settings, properties, publish)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NearFree's definition and weights."""
    folder = tmp_path_factory.mktemp("model")
    source = Path(models.__file__).parent / "near_free.py"
    (folder / "near_free.py").write_text(source.read_text())
    torch.manual_seed(0)
    torch.save(NearFree().state_dict(), folder / "weights.pt")
    return folder


@pytest.fixture(scope="module")
def loading(model_dir: Path) -> Iterator[None]:
    """Lets classifiers be loaded from `model_dir`, and restores what they change in the process."""
    level, threads = logging.getLogger().level, torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OFFPATH_PREDICTION_LOG", raising=False)
        patch.syspath_prepend(str(model_dir))
        yield
    logging.getLogger().setLevel(level)
    torch.set_num_threads(threads)


def photographs(count: int) -> list[Pixels]:
    """Returns photographs of the default size, again from the first one where there are too few."""
    images = [p.rgb.resize((224, 224)) for p in PHOTOGRAPHS]
    return [np.asarray(images[i % len(images)]) for i in range(count)]
