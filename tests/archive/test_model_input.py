"""A model and settings that do not fit: the reason in one line, with what to pass."""

from __future__ import annotations

import pytest
import torch

from offpath.archive.model_input import count_classes
from offpath.archive.models.near_free import NearFree
from offpath.handler.errors import ExpectedError
from offpath.handler.image.geometry import Square


def make_net(channels: int, side: int | None = None) -> torch.nn.Module:
    """Four classes; of any size, or of one."""
    head: list[torch.nn.Module] = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    features = 8
    if side is not None:
        head, features = [torch.nn.Flatten()], 8 * (side - 2) ** 2
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 8, 3), *head, torch.nn.Linear(features, 4)
    )


@pytest.mark.parametrize("size", [32, 33, 225, 336, 1024])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_is_taken_by_a_model_that_pools(size: int, channels: int) -> None:
    square = Square(size, size, channels=channels)
    assert count_classes(make_net(channels), square) == 4


@pytest.mark.parametrize(
    ("model", "square", "reason"),
    [
        (
            make_net(1),
            Square(),
            "takes 1 channels .* pass --set channels=1 with --mean",
        ),
        (make_net(3), Square(channels=1), "takes 3 channels .* pass --set channels=3"),
        (make_net(4), Square(), "takes 4 channels; accepted: 1 or 3"),
        (
            make_net(3, 96),
            Square(),
            "it takes 96 x 96 pixels; pass --set image_size=96",
        ),
        (make_net(3, 97), Square(), "shapes cannot be multiplied"),
        (NearFree(), Square(336), "it takes 224 x 224 pixels"),
    ],
)
def test_other_input_is_refused_with_the_reason(
    model: torch.nn.Module, square: Square, reason: str
) -> None:
    with pytest.raises(ExpectedError, match=reason) as caught:
        count_classes(model, square)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_says_its_reason_and_not_its_traceback() -> None:
    script = torch.jit.trace(make_net(3, 97).eval(), torch.zeros(1, 3, 97, 97))
    with pytest.raises(ExpectedError, match="cannot be multiplied") as caught:
        count_classes(script, Square())
    assert "\n" not in str(caught.value)


def test_model_of_one_picture_at_a_time_is_refused() -> None:
    class Single(torch.nn.Module):
        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            return pictures.mean((2, 3)).view(1, 3)

    with pytest.raises(ExpectedError, match="one picture at a time; export it"):
        count_classes(Single(), Square())
