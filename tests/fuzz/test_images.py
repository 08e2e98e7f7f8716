"""Changed files of every format give an image or a 4xx of their item, in time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decode import decode_image
from offpath.handler.input_maker import silence_decoders
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from tests.fuzz.seeds import CHANGES, Change, change, make_seeds, read_corpus
from tests.guarantees import guarantee

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SEEDS = make_seeds()
FOUND = read_corpus("images")
CONFIG = HandlerConfig(exif_orientation=True)
MAX_S = 2.0


@pytest.fixture(autouse=True, scope="module")
def silent() -> None:
    silence_decoders()


@guarantee(
    "Bytes that cause a 5xx or end a worker",
    "handler/image/decode.py",
    ('        raise UndecodableImage("the image data is broken or ' 'incomplete") from error'),
    "        raise",
)
@given(st.sampled_from(SEEDS), CHANGES)
def test_changed_file_is_decoded_or_fails_alone(seed: bytes, changes: list[Change]) -> None:
    check(change(seed, changes))


@pytest.mark.parametrize("name", FOUND)
def test_known_file_is_decoded_or_fails_alone(name: str) -> None:
    check(FOUND[name])
    check(FOUND[name][: len(FOUND[name]) // 2])


def check(file: bytes) -> None:
    """Checks that a file is decoded or refused within the budget."""
    body = bytearray(file)
    begin_s = time.thread_time()
    try:
        if body[:6] == NPY_MAGIC:
            read_npy(body, CONFIG.input_geometry.shape)
        else:
            decoded = decode_image(body, CONFIG.decode_options)
            assert decoded.pixels.ndim == 3 and decoded.pixels.shape[2] == 3
    except ItemError as error:
        assert 400 <= error.status < 500
    assert time.thread_time() - begin_s < MAX_S
