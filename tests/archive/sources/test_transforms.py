"""Transforms of torchvision become settings that make the same pixels, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from offpath.archive.photograph_sets import decode_photograph
from offpath.archive.photographs import SAMPLE
from offpath.archive.sources.transforms import read_transforms
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.model.normalise import Normaliser

HALF = v1.Normalize((0.5,), (0.25,))
IMAGENET = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
BICUBIC = v1.InterpolationMode.BICUBIC
ACCEPTED = {
    "stock": [v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), IMAGENET],
    "v2": [v2.Resize(256), v2.CenterCrop(224), v2.ToTensor(), v2.Normalize([0.5], [0.5])],
    "both sides": [v1.Resize((96, 128)), v1.ToTensor(), IMAGENET],
    "both sides, cropped": [v1.Resize([120, 120]), v1.CenterCrop((96, 64)), v1.ToTensor()],
    "one number in a list": [v1.Resize([72]), v1.CenterCrop(64), v1.ToTensor(), HALF],
    "bicubic": [v1.Resize(72, BICUBIC), v1.CenterCrop(64), v1.ToTensor(), HALF],
    "tensor first": [v1.ToTensor(), v1.Resize(72), v1.CenterCrop(64), HALF],
    "grey last": [v1.Resize(72), v1.CenterCrop(64), v1.Grayscale(), v1.ToTensor(), HALF],
    "grey first": [v1.Grayscale(1), v1.Resize((64, 64)), v1.ToTensor(), HALF],
    "tensors": [
        *(v1.Resize(72), v1.CenterCrop(64), v1.ToTensor()),
        v1.Normalize(torch.full((3, 1, 1), 0.4), torch.full((3, 1, 1), 0.2)),
    ],
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_settings_make_the_same_pixels(case: str) -> None:
    processing = v1.Compose(ACCEPTED[case])
    settings = read_transforms(processing)
    config = HandlerConfig.from_mapping({**settings, "decode": "exact"}, environ={})
    ours = torch.tensor(decode_photograph(SAMPLE.read_bytes(), config))[None]
    with Image.open(SAMPLE) as image:
        theirs = processing(image.convert("RGB"))
    difference = Normaliser(config, torch.device("cpu"))(ours)[0] - theirs
    assert difference.abs().mean() * max(config.std) * 255 < 0.5
    assert difference.shape == theirs.shape


REFUSED: dict[str, tuple[Any, str]] = {
    "none": (None, "NoneType"),
    "function": (lambda image: image, "function"),
    "other step": (v1.Compose([v1.Resize(8), v1.RandomHorizontalFlip()]), "RandomHorizontalFlip"),
    "no resize": (v1.Compose([v1.CenterCrop(64), v1.ToTensor()]), "CenterCrop, ToTensor"),
    "order": (v1.Compose([v1.CenterCrop(64), v1.Resize(64)]), "CenterCrop, Resize"),
    "twice": (v1.Compose([v1.Resize(64), v1.Resize(32)]), "Resize, Resize"),
    "three greys": (v1.Compose([v1.Grayscale(3), v1.ToTensor()]), "Grayscale, ToTensor"),
    "longest side": (v1.Compose([v1.Resize(64, max_size=96), v1.CenterCrop(64)]), "Resize, Cent"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_setting_expresses_is_named(case: str) -> None:
    processing, named = REFUSED[case]
    with pytest.raises(WrongOption, match=f"is .*{named}.* no settings express; accepted: Resize"):
        read_transforms(processing)


def test_a_resize_of_the_shorter_side_needs_a_crop() -> None:
    with pytest.raises(WrongOption, match=r"Resize\(64\) without CenterCrop"):
        read_transforms(v1.Compose([v1.Resize(64), v1.ToTensor()]))
