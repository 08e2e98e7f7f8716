from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.handler.errors import BadTensor
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from tests.guarantees import guarantee

SHAPE = (224, 192, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
BOMB_SHAPES = [
    "(1000000000,)",
    "(1000000, 1000000)",
    "(9223372036854775807,)",
    "(224, 224, 3, 1000000000000)",
]


def make_npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def make_header(descr: str, shape: str, is_fortran: bool = False) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': {is_fortran}, 'shape': {shape}}}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)], ids=str)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_npy_of_the_models_input_is_read(kind: type, version: tuple[int, int]) -> None:
    payload = kind(make_npy(PIXELS, version))
    assert payload[:6] == NPY_MAGIC
    np.testing.assert_array_equal(read_npy(payload, SHAPE), PIXELS)


@pytest.mark.parametrize("shape", BOMB_SHAPES)
def test_npy_header_that_claims_gigabytes_takes_no_memory(shape: str) -> None:
    payload = make_header("|u1", shape) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(BadTensor):
            read_npy(payload, SHAPE)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@guarantee("Pickles and damaged ONNX files")
def test_pickled_npy_is_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "sprung",)

    with pytest.raises(BadTensor):
        read_npy(make_npy(np.array([Trap()], dtype=object)), SHAPE)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)], ids=str)
def test_header_of_an_earlier_payload_is_not_reused(version: tuple[int, int]) -> None:
    other = PIXELS[::-1]
    for pixels in (PIXELS, other, np.asfortranarray(PIXELS), PIXELS):
        np.testing.assert_array_equal(read_npy(make_npy(pixels, version), SHAPE), pixels)
    with pytest.raises(BadTensor):
        read_npy(make_npy(PIXELS[:, :-1], version), SHAPE)
