"""Compares resize policies, interpolations and channels with torchvision and plain PyTorch.

On the 26 photographs, decoded exactly, no probability differs by more than 0.01. Activations are
compared in tests/handler/model/test_activation.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from offpath.handler.config import HandlerConfig
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from offpath.serving.client import make_npy
from tests.support.photographs import PHOTOGRAPHS, encode

BOUND = 0.01
CLASSES = 10
SIZE = 96
TALL, WIDE = (128, 64), (64, 128)
Torchvision = Callable[[Image.Image, InterpolationMode], Image.Image]


def resize_shorter(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    return v2.Compose([v2.Resize(110, filtered), v2.CenterCrop(SIZE)])(image)


def resize_then_crop(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    return v2.Compose([v2.Resize((110, 110), filtered), v2.CenterCrop(SIZE)])(image)


def letterbox_on_grey(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    resized = v2.Resize(None, filtered, max_size=SIZE)(image)
    left, above = (SIZE - resized.width) // 2, (SIZE - resized.height) // 2
    right, below = SIZE - resized.width - left, SIZE - resized.height - above
    return v2.Pad([left, above, right, below], fill=114)(resized)


def resize_straight_to_tall(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    return v2.Resize(TALL, filtered)(image)


def letterbox_to_wide(image: Image.Image, filtered: InterpolationMode) -> Image.Image:
    # CenterCrop fills up with black.
    return v2.Compose([fit(image, WIDE, filtered), v2.CenterCrop(WIDE)])(image)


def fit(image: Image.Image, size: tuple[int, int], filtered: InterpolationMode) -> v2.Resize:
    scale = min(Fraction(size[0], image.height), Fraction(size[1], image.width))
    return v2.Resize((int(image.height * scale), int(image.width * scale)), filtered)


POLICIES: dict[str, tuple[dict[str, object], Torchvision]] = {
    "shorter": ({"resize_size": 110}, resize_shorter),
    "stretch and crop": ({"resize": "stretch", "resize_size": 110}, resize_then_crop),
    "letterbox on grey": ({"resize": "letterbox", "fill": 114}, letterbox_on_grey),
    "tall stretch": ({"image_size": "128x64", "resize": "stretch"}, resize_straight_to_tall),
    "wide letterbox": ({"image_size": "64x128", "resize": "letterbox"}, letterbox_to_wide),
}


@pytest.fixture(scope="module")
def payloads() -> list[bytes]:
    return [encode(p.rgb, "JPEG", quality=95) for p in PHOTOGRAPHS]


@pytest.fixture(scope="module")
def images(payloads: list[bytes]) -> list[Image.Image]:
    """The images as Pillow decodes them; some are enlarged by the resize."""
    import io

    return [Image.open(io.BytesIO(payload)).convert("RGB") for payload in payloads]


def make_model(channels: int) -> torch.nn.Module:
    """Ten classes; photographs differ in their answers, unlike with fresh random weights."""
    torch.manual_seed(0)
    head = torch.nn.Linear(16, CLASSES)
    torch.nn.init.normal_(head.weight, std=4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 5, stride=2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        head,
    ).eval()


def answer(pipeline: Pipeline, payloads: list[bytes]) -> np.ndarray:
    replies = pipeline.classify([{"body": payload} for payload in payloads])
    rows = [json.loads(reply.body) for reply in replies]
    return np.array([[row[str(index)] for index in range(CLASSES)] for row in rows])


def compare(
    payloads: list[bytes],
    images: list[Image.Image],
    policy: str = "shorter",
    interpolation: str = "bilinear",
    channels: int = 3,
) -> float:
    """Returns the largest difference between a probability and plain PyTorch's."""
    settings, resize = POLICIES[policy]
    mean, std = [0.45, 0.5, 0.55][:channels], [0.25, 0.2, 0.3][:channels]
    config = HandlerConfig.from_mapping(
        {
            **{"image_size": SIZE, "interpolation": interpolation, "mean": mean},
            **{"std": std, "channels": channels, "decode": "exact"},
            **{"top_k": CLASSES, **settings},
        },
        environ={},
    )
    model, device = make_model(channels), torch.device("cpu")
    runner = BatchRunner(EagerEngine(model, config, device), config, device, 26)
    pipeline = Pipeline(config, runner, {}, 1)
    finish = v2.Compose(
        [
            *([v2.Grayscale()] if channels == 1 else []),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
        ]
    )
    filtered = InterpolationMode(interpolation)
    batch = torch.stack([finish(resize(image, filtered)) for image in images])
    with torch.inference_mode():
        expected = torch.softmax(model(batch), 1).numpy()
    assert len(payloads) >= 26 and expected.std(axis=0).max() > 0.1
    got = answer(pipeline, payloads)
    thin = answer(pipeline, [make_npy(payload, config.input_geometry) for payload in payloads])
    assert np.abs(thin - got).max() <= 3 * BOUND  # a thin client may decode scaled
    return float(np.abs(got - expected).max())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("policy", POLICIES)
def test_resize_policies_answer_like_torchvision(
    payloads: list[bytes], images: list[Image.Image], policy: str, interpolation: str
) -> None:
    assert compare(payloads, images, policy, interpolation) <= BOUND


@pytest.mark.parametrize("policy", ["shorter", "letterbox on grey"])
def test_luminance_answers_like_torchvisions_grayscale(
    payloads: list[bytes], images: list[Image.Image], policy: str
) -> None:
    assert compare(payloads, images, policy, channels=1) <= BOUND
