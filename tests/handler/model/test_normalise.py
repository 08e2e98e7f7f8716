from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from offpath.handler.config import HandlerConfig
from offpath.handler.model.normalise import ImageModel, Normaliser

CONFIG = HandlerConfig.from_mapping({}, environ={})
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        (CONFIG.mean, CONFIG.std),
        ((0.498, 0.498, 0.498), (0.502, 0.502, 0.502)),
        ((0.0, 0.5, 1.0), (1.0, 0.001, 0.5)),
    ],
)
def test_normalisation_equals_torchvisions(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    levels = np.arange(224 * 224 * 3).reshape(224, 224, 3).astype(np.uint8)
    expected = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )(levels)
    images = torch.from_numpy(levels)[None]
    config = HandlerConfig(mean=mean, std=std)
    made = Normaliser(config, CPU)(images)
    assert made.shape == (1, 3, 224, 224)
    assert made.is_contiguous(memory_format=torch.channels_last)
    exported = ImageModel(torch.nn.Identity(), config)(images)
    # Relative to 1 / std, which is what one grey level weighs.
    for normalised in (made, exported):
        assert (normalised[0] - expected).abs().max() * min(std) < 1e-6


def test_caffes_input_is_blue_first_and_on_0_to_255() -> None:
    mean, std = (103.939, 116.779, 123.68), (1.0, 2.0, 4.0)
    config = HandlerConfig(
        image_size="5x7", channel_order="bgr", pixel_scale=255, mean=mean, std=std
    )
    levels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    expected = torch.from_numpy((levels[..., ::-1] - mean) / std).permute(0, 3, 1, 2)
    images = torch.from_numpy(levels)
    for made in (
        Normaliser(config, CPU)(images),
        ImageModel(torch.nn.Identity(), config)(images),
    ):
        assert (made - expected).abs().max() < 1e-4
