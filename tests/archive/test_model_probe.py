"""Facts that the builder finds by running the model: input, outputs, `activation: auto`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from offpath.archive import say_nothing
from offpath.archive.model_probe import (
    check_repeatable,
    choose_activation,
    count_classes,
    find_output,
)
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.model.outputs import keep_one_output
from tests.support.photographs import PHOTOGRAPHS


def make_net(channels: int, side: int | None = None) -> torch.nn.Module:
    """Four classes; of any size, or of one."""
    head: list[torch.nn.Module] = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    features = 8
    if side is not None:
        head, features = [torch.nn.Flatten()], 8 * (side - 2) ** 2
    return torch.nn.Sequential(torch.nn.Conv2d(channels, 8, 3), *head, torch.nn.Linear(features, 4))


class Returns(torch.nn.Module):
    """Returns whatever a function makes of the images."""

    def __init__(self, make: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, images: torch.Tensor) -> object:
        return self.make(images)


def fail(images: torch.Tensor) -> object:
    raise ValueError("odd\n\nand long")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (make_net(1), "takes 1 channels .* pass --set channels=1 with --set mean"),
        (make_net(4), "takes 4 channels; accepted: 1 or 3"),
        (make_net(3, 96), "takes 96 x 96 pixels; pass --set image_size=96"),
        (
            Returns(lambda images: images.mean((2, 3)).view(1, 3)),
            "one image at a time; export it",
        ),
        (Returns(fail), r"does not accept a float32 .*: odd$"),
        (Returns(lambda images: images), r"returned \[2, 3, 224, 224\]"),
        (Returns(lambda images: images[:1].mean((2, 3))), r"for 2 images .* returned \[1, 3\]"),
        (Returns(lambda images: images.mean((2, 3)) > 0), "returned bool .class indices"),
    ],
)
def test_other_input_or_output_is_refused_with_the_reason(
    model: torch.nn.Module, reason: str
) -> None:
    with pytest.raises(ExpectedError, match=reason) as caught:
        count_classes(model, InputGeometry())
    assert "\n" not in str(caught.value)


@dataclass
class Answer:
    """An object that a model returns; `logits` is [batch, 3]."""

    logits: torch.Tensor
    features: torch.Tensor


OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], object], int | str, str]] = {
    "dict": (lambda t: {"features": t[:, :1], "logits": t}, "logits", "dict(features"),
    "object": (lambda t: Answer(t, t[:, :1]), "logits", "Answer(logits [2, 3], fea"),
    "tuple": (lambda t: (t, t[:, :1]), 0, "tuple(0 [2, 3], 1 [2, 1])"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_scores_are_taken_out_of_what_the_model_returns(name: str) -> None:
    make, expected, line = OUTPUTS[name]
    model = Returns(lambda images: make(images.mean((2, 3))))
    said: list[str] = []
    output = find_output(model, InputGeometry(), None, said.append)
    assert output == expected and len(said) == 1 and line in said[0]
    assert count_classes(keep_one_output(model, output), InputGeometry()) == 3


@pytest.mark.parametrize(
    ("make", "wanted", "message"),
    [
        (lambda t: t, "logits", "the model returns one tensor; leave it out"),
        (
            lambda t: {"scores": t},
            None,
            r"dict\(scores .* no 'logits'; name the scores",
        ),
    ],
)
def test_output_that_is_not_there_is_refused(
    make: Callable[[torch.Tensor], object], wanted: int | str | None, message: str
) -> None:
    with pytest.raises(WrongOption, match=message):
        find_output(Returns(make), InputGeometry(), wanted, say_nothing)


HEADS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logits": lambda outputs: outputs,
    "softmax": lambda outputs: torch.softmax(outputs, 1),
    "sigmoid": torch.sigmoid,
}
SETTINGS = {"image_size": 32, "resize_size": 36}


class Tiny(torch.nn.Module):
    """A few classes by colour, with or without its own head."""

    def __init__(self, head: str, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, classes)
        torch.nn.init.normal_(self.linear.weight, std=2)
        self.head = HEADS[head]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(images.mean(dim=(2, 3))))


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    """uint8 [12, 32, 32, 3]."""
    return np.stack([np.asarray(one.rgb.resize((32, 32))) for one in PHOTOGRAPHS[:12]])


def choose(
    model: torch.nn.Module, photographs: np.ndarray, **handler: Any
) -> tuple[str, list[str]]:
    """The activation, and what was said."""
    said: list[str] = []
    config = HandlerConfig.from_mapping({**SETTINGS, **handler}, environ={})
    return choose_activation(model, config, photographs, said.append), said


def test_a_model_whose_outputs_are_not_finite_is_refused(photographs: np.ndarray) -> None:
    model = Tiny("logits")
    torch.nn.init.constant_(model.linear.bias, torch.nan)
    with pytest.raises(WrongOption, match="not finite .* check the weights"):
        choose(model, photographs)


@pytest.mark.parametrize(
    ("model", "activation", "chosen", "said"),
    [
        (Tiny("logits"), "auto", "softmax", "activation auto: softmax.* no probabilities"),
        (Tiny("softmax"), "auto", "none", "activation auto: none.* that sum to 1"),
        (Tiny("sigmoid"), "auto", "none", "activation auto: none.* between 0 and 1 without"),
        (Tiny("logits", classes=1), "auto", "sigmoid", "activation auto: sigmoid.* no prob"),
        (Tiny("softmax"), "softmax", "softmax", "warning: .* as after a softmax, and activation"),
        (Tiny("sigmoid"), "sigmoid", "sigmoid", "warning: .* as after a sigmoid, and activation"),
        (
            Tiny("logits", classes=1),
            "softmax",
            "softmax",
            "warning: softmax of one class is always 1",
        ),
        (Tiny("logits"), "none", "none", "warning: .* no probabilities"),
        (Tiny("logits"), "softmax", "softmax", None),
    ],
)
def test_auto_is_decided_on_photographs_and_a_doubtful_activation_is_said(
    photographs: np.ndarray, model: Tiny, activation: str, chosen: str, said: str | None
) -> None:
    kept, lines = choose(model, photographs, activation=activation)
    assert kept == chosen and len(lines) == bool(said)
    assert all(re.match(said or "", line) for line in lines)


class Varying(torch.nn.Module):
    """A classifier with one layer that may compute with the batch or by chance."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), layer, torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(images).mean((2, 3)) * 20)


class FunctionalDropout(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(features)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: Varying(torch.nn.BatchNorm2d(8, track_running_stats=False)),
            r"before another, by layer 'stem.1' \(BatchNorm2d\)",
            id="batch-norm",
        ),
        pytest.param(
            lambda: Varying(FunctionalDropout()),
            r"again, by the code of a forward",
            id="functional",
        ),
        pytest.param(
            lambda: Returns(lambda images: images.mean((2, 3)) - images.mean((0, 2, 3))),
            "before another, by the code of a forward",
            id="forward",
        ),
    ],
)
def test_model_whose_answers_vary_is_refused_with_the_layer(
    photographs: np.ndarray, make: Callable[[], torch.nn.Module], message: str
) -> None:
    config = HandlerConfig.from_mapping(SETTINGS, environ={})
    model = make()
    with pytest.raises(WrongOption, match=f"{message}.*--set parity_bound=1 accepts"):
        check_repeatable(model, config, photographs)
    check_repeatable(model, replace(config, parity_bound=1.0), photographs)


def test_model_that_fails_on_one_photograph_is_refused(photographs: np.ndarray) -> None:
    norm = torch.nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.raises(WrongOption, match="fails on one alone.*running statistics"):
        choose(Returns(lambda images: norm(images.mean((2, 3)))), photographs)
