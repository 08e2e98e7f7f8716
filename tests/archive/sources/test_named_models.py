"""Models by name: embedded ones, and those of torchvision and timm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.model_probe import count_classes
from offpath.archive.sources.named_models import EMBEDDED, describe_model
from offpath.errors import WrongOption
from offpath.handler.image.geometry import InputGeometry
from tests.archive.conftest import load


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_model_has_a_thousand_classes_and_settings_of_ours(name: str) -> None:
    described = describe_model(name)
    assert count_classes(described.define({}).make(), InputGeometry()) == 1000
    config = make_model_config(load_preset("cpu"), {}, described.handler)
    assert config.settings["handler"] == described.handler


def test_timm_model_takes_classes_and_channels_from_the_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=7, in_chans=1)
    torch.save(model.state_dict(), tmp_path / "own.pt")
    source, _ = load("timm:resnet10t", str(tmp_path / "own.pt"))
    assert count_classes(source.module, InputGeometry(176, 176, channels=1)) == 7
    assert source.definition is not None
    assert "num_classes=7, in_chans=1" in source.definition.replace(
        "in_chans=1, num_classes=7", "num_classes=7, in_chans=1"
    )
    assert source.handler["interpolation"] in ("bicubic", "bilinear")
    with pytest.raises(WrongOption, match="no such classifier"):
        load("timm:resnet10x")
