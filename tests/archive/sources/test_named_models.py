from __future__ import annotations

import pytest

from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.model_probe import count_classes
from offpath.archive.sources.model_source import load_model_source
from offpath.archive.sources.named_models import (
    EMBEDDED,
    describe_model,
    imagenet_labels,
)
from offpath.handler.errors import ExpectedError
from offpath.handler.image.geometry import InputGeometry


def test_imagenet_labels_are_a_thousand_different_ones() -> None:
    labels = imagenet_labels()
    assert len(labels) == len(set(labels)) == 1000
    assert labels[967] == "espresso"
    # Each name twice in the original list; a reply is keyed by label.
    assert (labels[134], labels[517]) == ("crane bird", "crane")


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_model_has_one_class_and_a_thousand_answers(name: str) -> None:
    model = describe_model(name).define(None).make()
    assert count_classes(model, InputGeometry()) == 1000


@pytest.mark.parametrize("name", EMBEDDED)
@pytest.mark.parametrize("preset", ["cpu", "t4"])
def test_embedded_model_goes_with_every_preset(name: str, preset: str) -> None:
    handler = describe_model(name).handler
    config = make_model_config(load_preset(preset), {}, handler)
    assert config.settings["handler"] == handler


def test_default_model_has_real_weights_and_its_own_normalisation() -> None:
    source = load_model_source("efficientnet-lite0", None)
    assert source.handler["mean"] == [0.498] * 3
    assert source.labels is not None and len(source.labels) == 1000
    assert source.weights is not None


def test_model_without_published_weights_says_what_to_use() -> None:
    with pytest.raises(ExpectedError, match="--weights random"):
        load_model_source("near-free", "pretrained")
