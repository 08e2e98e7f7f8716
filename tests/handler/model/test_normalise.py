from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from offpath.handler.config import HandlerConfig
from offpath.handler.model.normalise import Normaliser, PictureModel

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
    pictures = torch.from_numpy(levels)[None]
    made = Normaliser(mean, std, 224, CPU)(pictures)
    assert made.shape == (1, 3, 224, 224)
    assert made.is_contiguous(memory_format=torch.channels_last)
    exported = PictureModel(torch.nn.Identity(), mean, std)(pictures)
    # Relative to 1 / std, which is what one grey level weighs.
    for normalised in (made, exported):
        assert (normalised[0] - expected).abs().max() * min(std) < 1e-6
