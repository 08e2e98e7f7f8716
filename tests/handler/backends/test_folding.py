from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from offpath.archive.model_source import load_model_source
from offpath.handler.backends.eager import EagerBackend
from offpath.handler.backends.folding import fold_normalisation
from offpath.handler.config import HandlerConfig
from offpath.handler.normalise import Normaliser
from tests.handler.conftest import make_engine

CONFIG = HandlerConfig.from_mapping({"image_size": 32, "resize_size": 36}, environ={})
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    """As the engine calls every back end."""
    with torch.inference_mode():
        yield


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 32, 32, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def convolution(**settings: object) -> torch.nn.Conv2d:
    torch.manual_seed(0)
    return torch.nn.Conv2d(3, 8, 7, **settings).eval()  # type: ignore[arg-type]


def tail() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"stride": 2, "padding": 3, "bias": False}, id="as-in-resnet"),
        pytest.param({"padding": (0, 2)}, id="uneven-frame-and-bias"),
        pytest.param({"dilation": 2}, id="dilated"),
    ],
)
def test_a_folded_convolution_answers_as_before_up_to_the_edges(
    settings: dict[str, object],
) -> None:
    model = convolution(**settings)
    expected = model(Normaliser(CONFIG.mean, CONFIG.std, 32, CPU)(pictures(3)))
    folded = fold_normalisation(model, CONFIG, CPU)
    assert folded is not None
    # Larger batches, smaller ones: the frame is kept, the pixels in it change.
    for count in (1, 3, 2):
        torch.testing.assert_close(
            folded(pictures(count))[0], expected[0], rtol=1e-4, atol=1e-5
        )


def test_the_model_itself_is_left_as_it_was_and_shares_its_weights() -> None:
    source = load_model_source("resnet50", "random")
    model = source.module.eval()
    before = model.conv1.weight.clone()
    folded = fold_normalisation(model, CONFIG, CPU)
    assert folded is not None
    assert torch.equal(model.conv1.weight, before)
    assert not torch.equal(folded.model.conv1.weight, before)
    assert folded.model.fc.weight is model.fc.weight


def test_half_range_weights_and_other_first_layers_are_not_folded() -> None:
    model = torch.nn.Sequential(convolution(), tail())
    assert fold_normalisation(model, CONFIG, CPU, torch.float16) is None
    assert fold_normalisation(make_engine(CONFIG).backend.model, CONFIG, CPU) is None
    padded = torch.nn.Sequential(torch.nn.ZeroPad2d(1), convolution(), tail())
    assert fold_normalisation(padded, CONFIG, CPU) is None
    assert (
        fold_normalisation(convolution(padding_mode="reflect", padding=1), CONFIG, CPU)
        is None
    )


def test_an_input_that_the_model_reads_twice_is_noticed_by_the_numbers() -> None:
    class Twice(torch.nn.Module):
        """Its pooled input goes round the convolution: that part would see raw pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.first = convolution()

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.first(batch).mean((2, 3))[:, :3] + batch.mean((2, 3))

    assert fold_normalisation(Twice().eval(), CONFIG, CPU) is None


def test_bf16_folds_too_and_stays_near() -> None:
    model = torch.nn.Sequential(convolution(padding=3), tail()).eval()
    plain = EagerBackend(model, CONFIG, CPU)
    half = EagerBackend(model, CONFIG, CPU, "bf16")
    assert plain.is_folded and half.is_folded
    assert model[0].weight.dtype == torch.float32
    answers = [backend(pictures(2)).float() for backend in (plain, half)]
    assert (answers[0] - answers[1]).abs().max() < 0.02 * answers[0].abs().max()
