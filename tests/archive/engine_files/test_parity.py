from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from offpath.archive.engines.parity import (
    choose_clear,
    make_parity_set,
    write_parity_file,
)
from offpath.handler.config import HandlerConfig
from offpath.handler.model.parity import load_parity_set

CONFIG = HandlerConfig(image_size=32, resize_size=32)


class Mean(torch.nn.Module):
    """As many classes as channels; the brightest wins."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.mean(dim=(2, 3))


def make_candidates(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shades = rng.integers(0, 256, (count, 1, 1, 3))
    return np.broadcast_to(shades, (count, 32, 32, 3)).astype(np.uint8)


def test_near_ties_are_left_out_where_enough_others_are_clear() -> None:
    clear = np.tile([0.7, 0.2, 0.1], (30, 1))
    clear[::3] = [0.36, 0.35, 0.29]
    chosen = choose_clear(clear, 0.05)
    assert len(chosen) == len(set(chosen)) == 16
    assert not any(index % 3 == 0 for index in chosen)
    assert chosen[0] < 3 and chosen[-1] > 26


def test_clearest_of_the_others_fill_up() -> None:
    margins = np.linspace(0, 0.04, 20)
    probabilities = np.stack([0.5 + margins / 2, 0.5 - margins / 2], axis=1)
    assert choose_clear(probabilities, 0.05).tolist() == list(range(4, 20))


def test_model_of_one_class_has_a_parity_set_too() -> None:
    assert len(choose_clear(np.ones((3, 1)), 0.05)) == 3


def test_parity_set_holds_eager_answers_and_is_read_back(tmp_path: Path) -> None:
    made = make_parity_set(Mean(), CONFIG, make_candidates(24))
    assert made.pictures.shape == (16, 32, 32, 3)
    planes = torch.from_numpy(made.pictures).permute(0, 3, 1, 2) / 255
    normalised = (planes - torch.tensor(CONFIG.mean).view(3, 1, 1)) / torch.tensor(
        CONFIG.std
    ).view(3, 1, 1)
    expected = torch.softmax(Mean()(normalised), 1).numpy()
    assert np.allclose(made.probabilities, expected, atol=1e-5)
    write_parity_file(tmp_path / "parity.npz", made)
    read = load_parity_set(tmp_path / "parity.npz", 32)
    assert np.array_equal(read.pictures, made.pictures)
    assert np.array_equal(read.probabilities, made.probabilities)


def test_same_set_gives_the_same_bytes(tmp_path: Path) -> None:
    made = make_parity_set(Mean(), CONFIG, make_candidates(3))
    for name in ("a.npz", "b.npz"):
        write_parity_file(tmp_path / name, made)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
