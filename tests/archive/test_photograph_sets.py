from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpath.archive.photograph_sets import load_photographs
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from tests.support.photographs import PHOTOGRAPHS, encode

CONFIG = HandlerConfig(image_size=64, resize_size=72)


def keys(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_the_few_bundled_photographs_check_answers_and_calibrate_nothing() -> None:
    sets = load_photographs(None, CONFIG)
    assert sets.held_out.shape == (32, 64, 64, 3) and len(keys(sets.held_out)) == 32
    with pytest.raises(ExpectedError, match="int8 needs photographs .*--calibrate FOLDER"):
        load_photographs(None, CONFIG, to_calibrate=True)


def test_folder_is_halved_and_what_is_no_image_left_out(tmp_path: Path) -> None:
    for index, photograph in enumerate(PHOTOGRAPHS[:7]):
        jpeg = encode(photograph.rgb.resize((96, 80)), "JPEG")
        (tmp_path / f"{index:02}.jpg").write_bytes(jpeg)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    (tmp_path / "deeper").mkdir()
    sets = load_photographs(tmp_path, CONFIG)
    assert (len(sets.calibration), len(sets.held_out)) == (3, 4)
    assert not keys(sets.calibration) & keys(sets.held_out)
