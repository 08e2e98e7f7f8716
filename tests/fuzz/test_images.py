"""Changed files of every format give an image or a 4xx of their item, in time."""

from __future__ import annotations

import time
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decode import decode_image
from offpath.handler.input_maker import silence_decoders
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from tests.fuzz.seeds import CHANGES, Change, change, make_seeds, read_corpus
from tests.support.costly import TAG_TYPES, Tags, make_tiff
from tests.support.guarantees import guarantee

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


def tags(numbers: list[int], kinds: list[int]) -> st.SearchStrategy[Tags]:
    """Tags with values of every size and sign; some twice, some of types that nobody knows."""
    values = st.lists(st.sampled_from([0, 1, 7, 8, 99, 2**15, 2**31]), max_size=4)
    tag = st.tuples(st.sampled_from(numbers), st.sampled_from(kinds))
    raw = st.binary(max_size=40)
    return st.lists(st.builds(lambda t, v: (*t, v), tag, raw), max_size=3) | st.lists(
        st.builds(lambda n, v: (n, 4, v), st.sampled_from(numbers), values), max_size=3
    )


TAGS = tags(
    [254, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 284, 317, 320, 322, 323]
    + [324, 325, 338, 339, 347, 513, 514, 530, 34665, 34853, 40965, 65000],
    [*TAG_TYPES],
)


@given(
    TAGS,
    TAGS,
    st.sampled_from([1, 2, 4, 5, 6, 7, 8, 32773, 34925, 50000, 0, 65535]),
    st.sampled_from([None, (16, 16), (4096, 4096), (0, 1)]),
    st.integers(1, 50),
    st.binary(max_size=64),
)
def test_any_tags_of_a_tiff_are_decoded_or_refused(
    first: Tags, last: Tags, compression: int, tile: tuple[int, int] | None, count: int, data: bytes
) -> None:
    layout: dict[str, Any] = {"tile": tile, "tiles": count} if tile else {"strips": count}
    packed = zlib.compress(bytes(100 * 100)) if compression == 8 else data
    check(make_tiff(packed, compression=compression, first=first, last=last, **layout))
