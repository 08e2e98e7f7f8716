"""Decoding on a device, with torchvision's CPU decoder where nvjpeg's call would be."""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from offpath.handler.config import HandlerConfig
from offpath.handler.image import nvjpeg
from offpath.handler.image.decode import DecodeOptions
from offpath.handler.image.formats import Payload
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.nvjpeg import DecodeTogether, DeviceDecoder, find_nvjpeg
from offpath.handler.image.torch_transform import transform_on_device
from offpath.handler.pipeline import Pipeline
from tests.handler.conftest import classify, make_runner
from tests.support.photographs import PHOTOGRAPHS, encode, find_photograph

COFFEE = find_photograph("coffee").rgb
JPEG = encode(COFFEE, "JPEG")
OPTIONS = DecodeOptions(384)
ORIENTATION = 0x0112
# Largest effect of the resamplers' last bit on a probability of the test's sensitive model.
ROUNDING = 5e-3


class CpuDecoder:
    """Stands for nvjpeg: one file that it cannot decode fails the whole call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        self.calls.append(len(files))
        images: list[torch.Tensor] = decode_jpeg(files, ImageReadMode.RGB)
        return images


class TurningDecoder(CpuDecoder):
    """Stands for torchcodec.decoders, whose version 0.17 turns images by their EXIF."""

    def decode_jpeg(self, files: list[torch.Tensor], *, device: torch.device) -> list[torch.Tensor]:
        return [turn(image, file) for image, file in zip(self(files), files)]


def turn(image: torch.Tensor, file: torch.Tensor) -> torch.Tensor:
    exif = Image.open(io.BytesIO(file.numpy().tobytes())).getexif()
    return image.rot90(-1, (1, 2)) if exif.get(ORIENTATION) == 6 else image


def decode_on_device(
    payloads: list[Payload], options: DecodeOptions, decode: DecodeTogether
) -> list[torch.Tensor | None]:
    decoder = DeviceDecoder(decode, options, InputGeometry())
    taken = [payload for payload in payloads if decoder.takes(payload)]
    return decoder.decode(taken) if taken else [None] * len(payloads)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(COFFEE, "JPEG", exif=exif)


def without_tables(payload: bytes) -> bytes:
    """Removes the quantisation tables, without which an image with a good header is useless."""
    while (start := payload.find(b"\xff\xdb")) > 0:
        length = int.from_bytes(payload[start + 2 : start + 4], "big")
        payload = payload[:start] + payload[start + 2 + length :]
    return payload


def with_unknown_codes(payload: bytes) -> bytes:
    """Makes the scan name Huffman tables that the file does not have."""
    at = payload.find(b"\xff\xda") + 6
    return payload[:at] + b"\x33" + payload[at + 1 :]


@pytest.fixture
def torchcodec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of an installed torchcodec."""
    folder = tmp_path / "torchcodec"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torchcodec", "torchcodec.decoders"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


@pytest.fixture
def decoders(torchcodec: Path, monkeypatch: pytest.MonkeyPatch) -> TurningDecoder:
    """Returns what stands for the module torchcodec.decoders."""
    decoders = TurningDecoder()
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    return decoders


@pytest.fixture
def from_torchcodec(decoders: TurningDecoder) -> DecodeTogether:
    decode = find_nvjpeg(torch.device("cuda"))
    assert decode is not None
    decoders.calls.clear()
    return decode


def test_torchcodec_is_chosen_where_it_is_installed_and_does_not_turn_images(
    from_torchcodec: DecodeTogether, decoders: TurningDecoder
) -> None:
    stored, as_stored = decode_on_device([turned(6), JPEG], DecodeOptions(), from_torchcodec)
    assert decoders.calls == [2]
    assert stored is not None and as_stored is not None and torch.equal(stored, as_stored)


def test_a_torchcodec_that_does_not_load_leaves_the_work_to_others(
    torchcodec: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (torchcodec / "decoders.py").write_text("raise OSError('libnvjpeg.so.13: cannot open')")
    find_nvjpeg(torch.device("cuda"))
    assert "does not work with torchcodec: libnvjpeg.so.13: cannot open" in caplog.text
    assert torch.cuda.is_available() or "does not work with torchvision: " in caplog.text


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        pytest.param(encode(COFFEE.convert("CMYK"), "JPEG"), OPTIONS, id="inks"),
        pytest.param(without_tables(JPEG), OPTIONS, id="no-tables"),
        pytest.param(JPEG, DecodeOptions(max_pixels=999), id="over-the-limit"),
        pytest.param(turned(6), DecodeOptions(exif_orientation=True), id="to-be-turned"),
    ],
)
def test_images_that_nvjpeg_cannot_decode_are_left_to_the_cpu(
    payload: bytes, options: DecodeOptions
) -> None:
    decode = CpuDecoder()
    assert decode_on_device([payload], options, decode) == [None]
    assert decode.calls == []


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access"),
        # As torchvision says it: cudaErrorIllegalAddress.
        RuntimeError("Error while decoding JPEG images: Failed to synchronize CUDA stream: 700"),
    ],
    ids=["torch", "torchvision"],
)
def test_a_broken_device_is_not_taken_for_a_broken_file(error: Exception) -> None:
    def decode(files: list[torch.Tensor]) -> list[torch.Tensor]:
        raise error

    with pytest.raises(RuntimeError) as raised:
        decode_on_device([JPEG, JPEG], OPTIONS, decode)
    assert raised.value is error


def test_an_image_that_does_not_fit_on_the_device_does_not_fail_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = COFFEE.resize((COFFEE.width * 2, COFFEE.height * 2))
    payloads = [JPEG, encode(large, "JPEG")]
    expected = read(make_pipeline(None, decode="exact"), payloads)

    def transform(
        images: list[torch.Tensor], geometry: InputGeometry
    ) -> Sequence[torch.Tensor | None]:
        if images[0].shape[2] == large.width:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return transform_on_device(images, geometry)

    monkeypatch.setattr(nvjpeg, "transform_on_device", transform)
    mixed = read(make_pipeline(CpuDecoder()), payloads)
    for answer, one in zip(mixed, expected):
        assert answer == pytest.approx(one, abs=ROUNDING)


def test_without_a_cuda_device_the_cpu_decodes_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_nvjpeg(torch.device("cpu")) is None
        assert make_pipeline(None).decode_mode == "scaled"
    assert caplog.text.count("nvjpeg needs a CUDA device") == 2
    assert make_pipeline(CpuDecoder()).decode_mode == "nvjpeg"


def make_pipeline(decoder: DecodeTogether | None, decode: str = "nvjpeg") -> Pipeline:
    config = HandlerConfig.from_mapping({"decode": decode}, environ={})
    return Pipeline(config, make_runner(config), {}, 1, decoder)


def read(pipeline: Pipeline, payloads: list[bytes]) -> list[dict[str, Any]]:
    kinds = itertools.cycle([bytearray, bytes, memoryview])
    bodies = (kind(payload) for payload, kind in zip(payloads, kinds))
    return [json.loads(reply.body) for reply in classify(pipeline, bodies)]


@pytest.mark.parametrize("package", ["torchvision", "torchcodec"])
def test_mixed_batch_keeps_its_order_and_errors(
    package: str, request: pytest.FixtureRequest
) -> None:
    payloads = [JPEG, b"junk", encode(COFFEE, "PNG"), JPEG[:-100], with_unknown_codes(JPEG)]
    payloads += [encode(find_photograph("chelsea").rgb, "JPEG"), b""]
    decode = alone = CpuDecoder()
    if package == "torchcodec":
        decode, alone = map(request.getfixturevalue, ("from_torchcodec", "decoders"))
    mixed = read(make_pipeline(decode), payloads)
    # One file fails the call, and is left to the CPU after one call per file.
    assert alone.calls == [3, 1, 1, 1]
    on_cpu = read(make_pipeline(None, decode="exact"), payloads)
    for answer, expected in zip(mixed, on_cpu):
        if "code" in expected:
            assert answer == expected
        else:
            assert answer == pytest.approx(expected, abs=ROUNDING)
    codes = [answer.get("code") for answer in mixed]
    assert codes == [None, 415, None, 422, 422, None, 400]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("package", nvjpeg.DECODERS)
def test_answers_of_nvjpeg_are_near_the_cpus(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    monkeypatch.setattr(nvjpeg, "DECODERS", {package: nvjpeg.DECODERS[package]})
    config = HandlerConfig.from_mapping({"decode": "nvjpeg"}, environ={})
    pipeline = Pipeline(config, make_runner(config, device="cuda"), {}, 1)
    payloads = [encode(photograph.rgb, "JPEG", quality=95) for photograph in PHOTOGRAPHS]
    payloads[3:3] = [encode(COFFEE, "PNG"), b"junk", without_tables(JPEG), turned(6)]
    payloads.append(with_unknown_codes(JPEG))
    assert pipeline.decode_mode == "nvjpeg"
    on_cpu = read(make_pipeline(None, decode="exact"), payloads)
    for answer, expected in zip(read(pipeline, payloads), on_cpu):
        assert answer.get("code") == expected.get("code")
        if "code" not in expected:
            assert answer == pytest.approx(expected, abs=0.03)
