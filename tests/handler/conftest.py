"""A pipeline over a trivial model, and a photograph encoded in every format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from offpath.archive.models.near_free import NearFree
from offpath.handler.config import HandlerConfig
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.pipeline import Pipeline
from tests.support.photographs import encode, find_photograph

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
    rgb = find_photograph("coffee").rgb.resize((120, 80))
    grey = rgb.convert("L")
    rgba = rgb.copy()
    rgba.putalpha(grey)
    palette = rgb.quantize(64)
    exif = rgb.getexif()
    exif[0x0112] = 6
    tall = [rgb, rgb.rotate(180)]
    return {
        "jpeg": encode(rgb, "JPEG", quality=90),
        "jpeg-progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg-444": encode(rgb, "JPEG", subsampling=0),
        "jpeg-grey": encode(grey, "JPEG"),
        "jpeg-cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "jpeg-exif": encode(rgb, "JPEG", exif=exif),
        "png": encode(rgb, "PNG"),
        "png-grey": encode(grey, "PNG"),
        "png-bilevel": encode(rgb.convert("1"), "PNG"),
        "png-rgba": encode(rgba, "PNG"),
        "png-la": encode(rgba.convert("LA"), "PNG"),
        "png-palette": encode(palette, "PNG"),
        "png-palette-transparent": encode(palette, "PNG", transparency=3),
        "png-16bit": encode(grey.point(lambda v: v * 257, "I").convert("I;16"), "PNG"),
        "webp": encode(rgb, "WEBP", quality=80),
        "webp-lossless": encode(rgb, "WEBP", lossless=True),
        "webp-rgba": encode(rgba, "WEBP"),
        "webp-animated": encode(rgb, "WEBP", save_all=True, append_images=tall),
        "gif": encode(palette, "GIF"),
        "gif-animated": encode(rgb, "GIF", save_all=True, append_images=tall),
        "bmp": encode(rgb, "BMP"),
        "bmp-palette": encode(palette, "BMP"),
        "tiff": encode(rgb, "TIFF"),
        "tiff-lzw": encode(rgb, "TIFF", compression="tiff_lzw"),
        "tiff-jpeg": encode(rgb, "TIFF", compression="jpeg"),
        "tiff-cmyk": encode(rgb.convert("CMYK"), "TIFF"),
        "tiff-16bit": encode(grey.point(lambda v: v * 257, "I").convert("I;16"), "TIFF"),
    }
