"""The ways from a JPEG's bytes to a model's input that `offpath bench decoders` compares.

A decoder's way ends with its pixels; its answers are those of the pixels through Pillow's resize
(handler/transform.py), so that a difference is the decoder's. A pair's way ends where the model's
input is ready to be copied, and its answers are its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torchvision import io as torchvision_io
from torchvision import transforms

from offpath.handler.config import HandlerConfig
from offpath.handler.decode import (
    DecodedImage,
    DecodeOptions,
    Pixels,
    choose_scale,
    decode_image,
)
from offpath.handler.resample import transform_with_torch
from offpath.handler.transform import plan_resize, transform_image

DECODER, PAIR = "decoder", "decoder and transform"
# What the others of their kind are divided by.
BASELINES = {DECODER: "Pillow", PAIR: "stock"}

Run = Callable[[bytearray], Any]


@dataclass(frozen=True)
class Way:
    """One row of the table.

    Attributes:
        kind: DECODER or PAIR.
        packages: pip's names of what it needs, the one with the decoder first.
        prepare: makes the function that is timed; raises ImportError, OSError or RuntimeError
            where a library is missing. It returns a DecodedImage, the model's uint8 square or its
            float input.
        is_ours: what the handler does by default.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    prepare: Callable[[HandlerConfig], Run]
    is_ours: bool = False


def make_input(made: Any, config: HandlerConfig) -> torch.Tensor:
    """What a way returned -> float32 [3, size, size], normalised."""
    if isinstance(made, DecodedImage):
        made = transform_image(made, config.resize_size, config.image_size)
    if isinstance(made, np.ndarray):
        made = transforms.functional.to_tensor(np.array(made))
        made = transforms.functional.normalize(made, config.mean, config.std)
    if not isinstance(made, torch.Tensor):
        raise TypeError(f"a way returned {type(made).__name__}")
    return made


def scaled_size(config: HandlerConfig) -> int:
    """The shorter side that a scaled decode keeps at least, as the handler has it; pixels."""
    return int(config.resize_size * config.scale_margin)


def read_size(payload: bytearray) -> tuple[int, int]:
    """Height and width by the header."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(payload)
    return height, width


def full(pixels: Pixels) -> DecodedImage:
    """Pixels of a decode without scaling."""
    return DecodedImage(pixels, pixels.shape[0], pixels.shape[1], is_jpeg=True)


# --- decoders ----------------------------------------------------------------------------------


def open_with_pillow(payload: bytearray) -> Image.Image:
    """The picture in RGB, as the stock handler opens it."""
    return Image.open(io.BytesIO(payload)).convert("RGB")


def draft_with_pillow(payload: bytearray, least: int) -> tuple[Image.Image, int, int]:
    """The picture at the smallest of libjpeg's sizes with `least` pixels, and its full size."""
    image = Image.open(io.BytesIO(payload))
    width, height = image.size
    scale = choose_scale(height, width, least)
    # Rounded down: Pillow divides the sides by these and rounds that down in turn.
    image.draft("RGB", (width // scale, height // scale))
    return image.convert("RGB"), height, width


def prepare_pillow(config: HandlerConfig) -> Run:
    return lambda payload: full(np.asarray(open_with_pillow(payload)))


def prepare_draft(config: HandlerConfig) -> Run:
    least = scaled_size(config)

    def run(payload: bytearray) -> DecodedImage:
        image, height, width = draft_with_pillow(payload, least)
        scale = choose_scale(height, width, least)
        return DecodedImage(np.asarray(image), height, width, scale, is_jpeg=True)

    return run


def prepare_simplejpeg(min_size: Callable[[HandlerConfig], int]) -> Any:
    """Our own decoder, in full or scaled."""

    def prepare(config: HandlerConfig) -> Run:
        options = DecodeOptions(min_size(config))
        return lambda payload: decode_image(payload, options)

    return prepare


def prepare_fast_simplejpeg(config: HandlerConfig) -> Run:
    """With libjpeg's quick inverse DCT and chroma upsampling, which our decoder leaves off."""
    least = scaled_size(config)

    def run(payload: bytearray) -> DecodedImage:
        height, width = read_size(payload)
        scale = choose_scale(height, width, least)
        pixels = simplejpeg.decode_jpeg(
            payload,
            "RGB",
            fastdct=True,
            fastupsample=True,
            min_height=-(-height // scale),
            min_width=-(-width // scale),
        )
        return DecodedImage(pixels, height, width, scale, is_jpeg=True)

    return run


def prepare_turbojpeg(is_scaled: bool) -> Any:
    """PyTurboJPEG over the system's libturbojpeg."""

    def prepare(config: HandlerConfig) -> Run:
        import turbojpeg

        decoder = turbojpeg.TurboJPEG()
        least = scaled_size(config) if is_scaled else 0

        def run(payload: bytearray) -> DecodedImage:
            width, height, *_ = decoder.decode_header(payload)
            scale = choose_scale(height, width, least)
            pixels = decoder.decode(payload, turbojpeg.TJPF_RGB, (1, scale))
            return DecodedImage(pixels, height, width, scale, is_jpeg=True)

        return run

    return prepare


def decode_with_torchvision(payload: bytearray) -> torch.Tensor:
    """uint8 [3, height, width]."""
    pixels: torch.Tensor = torchvision_io.decode_jpeg(
        torch.frombuffer(payload, dtype=torch.uint8), torchvision_io.ImageReadMode.RGB
    )
    return pixels


def prepare_torchvision(config: HandlerConfig) -> Run:
    return lambda payload: full(
        decode_with_torchvision(payload).permute(1, 2, 0).numpy()
    )


def prepare_opencv(is_reduced: bool) -> Any:
    """cv2.imdecode, in full or by its IMREAD_REDUCED flags (which exist for BGR alone)."""

    def prepare(config: HandlerConfig) -> Run:
        import cv2

        cv2.setNumThreads(1)
        least = scaled_size(config) if is_reduced else 0
        flags = {
            1: cv2.IMREAD_COLOR_BGR,
            2: cv2.IMREAD_REDUCED_COLOR_2,
            4: cv2.IMREAD_REDUCED_COLOR_4,
            8: cv2.IMREAD_REDUCED_COLOR_8,
        }

        def run(payload: bytearray) -> DecodedImage:
            height, width = read_size(payload)
            scale = choose_scale(height, width, least)
            flag = flags[scale] | cv2.IMREAD_IGNORE_ORIENTATION
            bgr = cv2.imdecode(np.frombuffer(payload, np.uint8), flag)
            pixels = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
            return DecodedImage(pixels, height, width, scale, is_jpeg=True)

        return run

    return prepare


def prepare_vips(config: HandlerConfig) -> Run:
    """libvips: scaled, and no row below the crop is decoded; the only wheel that can do that."""
    import pyvips

    pyvips.cache_set_max(0)
    least, size = scaled_size(config), config.image_size

    def run(payload: bytearray) -> DecodedImage:
        height, width = read_size(payload)
        scale = choose_scale(height, width, least)
        plan = plan_resize(height, width, config.resize_size, size)
        step = height / plan.height / scale
        image = pyvips.Image.jpegload_buffer(payload, shrink=scale, access="sequential")
        top, left = int(plan.top * step), int(plan.left * step)
        # One pixel more on each side for the filter.
        top, left = max(0, top - 2), max(0, left - 2)
        bottom = min(image.height, int((plan.top + size) * step) + 3)
        right = min(image.width, int((plan.left + size) * step) + 3)
        part = image.crop(left, top, right - left, bottom - top).numpy()
        return DecodedImage(part, height, width, scale, -top, -left, is_jpeg=True)

    return run


# --- pairs -------------------------------------------------------------------------------------


def make_stock_transforms(config: HandlerConfig) -> Callable[[Any], torch.Tensor]:
    """The stock handler's own."""
    made: Callable[[Any], torch.Tensor] = transforms.Compose(
        [
            transforms.Resize(config.resize_size),
            transforms.CenterCrop(config.image_size),
            transforms.ToTensor(),
            transforms.Normalize(config.mean, config.std),
        ]
    )
    return made


def prepare_stock(config: HandlerConfig) -> Run:
    stock = make_stock_transforms(config)
    return lambda payload: stock(open_with_pillow(payload))


def prepare_draft_stock(config: HandlerConfig) -> Run:
    stock, least = make_stock_transforms(config), scaled_size(config)
    return lambda payload: stock(draft_with_pillow(payload, least)[0])


def prepare_torchvision_tensors(config: HandlerConfig) -> Run:
    """torchvision from end to end, on uint8 tensors as its documentation advises."""
    steps = transforms.Compose(
        [
            transforms.Resize(config.resize_size, antialias=True),
            transforms.CenterCrop(config.image_size),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(config.mean, config.std),
        ]
    )
    return lambda payload: steps(decode_with_torchvision(payload))


def prepare_resized(prepare: Callable[[HandlerConfig], Run], transform: Any) -> Any:
    """A decoder followed by one of our two resizers."""

    def prepare_pair(config: HandlerConfig) -> Run:
        decode = prepare(config)
        sizes = config.resize_size, config.image_size
        return lambda payload: transform(decode(payload), *sizes)

    return prepare_pair


def decode_in_full(config: HandlerConfig) -> int:
    """A least size that no scaled decode has."""
    return 0


full_simplejpeg = prepare_simplejpeg(decode_in_full)
scaled_simplejpeg = prepare_simplejpeg(scaled_size)
TORCHVISION, OPENCV = ("torchvision",), ("opencv-python-headless",)
SIMPLEJPEG, PILLOW = ("simplejpeg",), ("pillow",)
VIPS = ("pyvips", "pyvips-binary")
WAYS: Sequence[Way] = (
    Way("Pillow", DECODER, PILLOW, prepare_pillow),
    Way("Pillow draft", DECODER, PILLOW, prepare_draft),
    Way("simplejpeg", DECODER, SIMPLEJPEG, full_simplejpeg),
    Way("simplejpeg scaled", DECODER, SIMPLEJPEG, scaled_simplejpeg, is_ours=True),
    Way("simplejpeg scaled, fast", DECODER, SIMPLEJPEG, prepare_fast_simplejpeg),
    Way("PyTurboJPEG", DECODER, ("PyTurboJPEG",), prepare_turbojpeg(False)),
    Way("PyTurboJPEG scaled", DECODER, ("PyTurboJPEG",), prepare_turbojpeg(True)),
    Way("torchvision", DECODER, TORCHVISION, prepare_torchvision),
    Way("OpenCV", DECODER, OPENCV, prepare_opencv(False)),
    Way("OpenCV reduced", DECODER, OPENCV, prepare_opencv(True)),
    Way("libvips scaled, cropped", DECODER, VIPS, prepare_vips),
    Way("stock", PAIR, PILLOW, prepare_stock),
    Way("Pillow draft, stock", PAIR, PILLOW, prepare_draft_stock),
    Way("torchvision tensors", PAIR, TORCHVISION, prepare_torchvision_tensors),
    Way(
        "decode: exact",
        PAIR,
        SIMPLEJPEG,
        prepare_resized(full_simplejpeg, transform_image),
    ),
    Way(
        "simplejpeg scaled, Pillow",
        PAIR,
        SIMPLEJPEG,
        prepare_resized(scaled_simplejpeg, transform_image),
    ),
    Way(
        "OpenCV reduced, torch",
        PAIR,
        OPENCV,
        prepare_resized(prepare_opencv(True), transform_with_torch),
    ),
    Way(
        "decode: scaled",
        PAIR,
        SIMPLEJPEG,
        prepare_resized(scaled_simplejpeg, transform_with_torch),
        is_ours=True,
    ),
)


def prepare_ways(
    ways: Sequence[Way], config: HandlerConfig
) -> tuple[dict[str, Run], Mapping[str, str]]:
    """The ways that work here by name, and why each other one does not."""
    runs, not_run = {}, {}
    for way in ways:
        try:
            runs[way.name] = way.prepare(config)
        except ModuleNotFoundError:
            not_run[way.name] = "not installed; pip install " + " ".join(way.packages)
        except (ImportError, OSError, RuntimeError) as error:
            not_run[way.name] = f"does not load: {' '.join(str(error).split())}"
    return runs, not_run
