"""What the builder says of a model's outputs, and what `activation: auto` becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.engines.artefacts import EngineBuild, build_engine_folder
from offpath.archive.head import settle_head
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import WrongOption
from offpath.handler.model.parity import load_parity_set
from tests.support.photographs import PHOTOGRAPHS, encode

HEADS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logits": lambda outputs: outputs,
    "softmax": lambda outputs: torch.softmax(outputs, 1),
    "sigmoid": torch.sigmoid,
}


class Tiny(torch.nn.Module):
    """A few classes by colour, with or without a head of its own."""

    def __init__(self, head: str, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, classes)
        torch.nn.init.normal_(self.linear.weight, std=2)
        self.head = HEADS[head]

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(pictures.mean(dim=(2, 3))))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for index, photograph in enumerate(PHOTOGRAPHS[:12]):
        jpeg = encode(photograph.rgb.resize((48, 40)), "JPEG")
        (folder / f"{index:02}.jpg").write_bytes(jpeg)
    return folder


def settle(
    model: Tiny, photographs: Path | None, **handler: Any
) -> tuple[dict[str, Any], list[str]]:
    """The `handler:` section afterwards, and what was said."""
    said: list[str] = []
    config = {"handler": {"image_size": 32, "resize_size": 36, **handler}}
    settle_head(config, model, photographs, said.append)
    return config["handler"], said


@pytest.mark.parametrize(
    ("model", "chosen", "why"),
    [
        (Tiny("logits"), "softmax", "no probabilities (-"),
        (Tiny("softmax"), "none", "probabilities that sum to 1"),
        (Tiny("sigmoid"), "none", "between 0 and 1 without summing to 1"),
        (Tiny("logits", classes=1), "sigmoid", "no probabilities (-"),
        (Tiny("sigmoid", classes=1), "none", "between 0 and 1"),
    ],
    ids=["logits", "softmax", "sigmoid", "one logit", "one sigmoid"],
)
def test_auto_is_decided_on_photographs_and_said(
    photographs: Path, model: Tiny, chosen: str, why: str
) -> None:
    handler, said = settle(model, photographs, activation="auto")
    assert handler["activation"] == chosen
    assert len(said) == 1 and said[0].startswith(f"activation auto: {chosen}; ")
    assert why in said[0]


@pytest.mark.parametrize(
    ("model", "activation", "doubt"),
    [
        (
            Tiny("softmax"),
            None,
            "sum to 1, as after a softmax, and activation is softmax",
        ),
        (Tiny("sigmoid"), None, "as after a sigmoid, and activation is softmax"),
        (Tiny("sigmoid"), "sigmoid", "as after a sigmoid, and activation is sigmoid"),
        (Tiny("logits", classes=1), "softmax", "softmax of one class is always 1"),
        (Tiny("logits"), "none", "no probabilities"),
        (Tiny("logits"), None, None),
        (Tiny("logits"), "sigmoid", None),
        (Tiny("softmax"), "none", None),
        (Tiny("sigmoid"), "none", None),
    ],
)
def test_activation_that_does_not_fit_is_one_line(
    photographs: Path, model: Tiny, activation: str | None, doubt: str | None
) -> None:
    given = {} if activation is None else {"activation": activation}
    handler, said = settle(model, photographs, **given)
    assert handler.get("activation") == activation
    assert [line.startswith("warning: ") for line in said] == [True] * bool(doubt)
    assert all(doubt in line and "\n" not in line for line in said if doubt)


def test_bundled_photographs_decide_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offpath.archive.photographs.SOURCES", (("skimage", "none"),))
    handler, _ = settle(
        Tiny("softmax"), None, activation="auto", image_size=40, resize_size=40
    )
    assert handler["activation"] == "none"


def test_threshold_of_what_turns_out_a_softmax_is_refused(photographs: Path) -> None:
    with pytest.raises(WrongOption, match="auto is softmax here .* no threshold"):
        settle(Tiny("logits"), photographs, activation="auto", threshold=0.5)
    handler, _ = settle(Tiny("sigmoid"), photographs, activation="auto", threshold=0.5)
    assert handler["activation"] == "none"


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize(
    ("head", "activation"), [("logits", "sigmoid"), ("softmax", "none")]
)
def test_graph_is_held_to_the_scores_that_are_answered(
    photographs: Path, tmp_path: Path, engine: str, head: str, activation: str
) -> None:
    pytest.importorskip(engine)
    model = Tiny(head).eval()
    settings = {"image_size": 32, "resize_size": 36, "activation": activation}
    config = HandlerConfig.from_mapping(settings, environ={})
    said: list[str] = []
    folder = tmp_path / "engine"
    build = EngineBuild(engine, "fp32", calibrate=photographs)
    build_engine_folder(build, model, config, folder, said.append)
    assert "changes 0 best classes" in said[-1]
    stored = load_parity_set(folder / "parity.npz", 32)
    planes = torch.from_numpy(stored.pictures).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (config.mean, config.std))
    plain = HEADS["sigmoid" if activation == "sigmoid" else "logits"](
        model((planes - mean) / std)
    )
    torch.testing.assert_close(
        torch.from_numpy(stored.probabilities), plain.detach(), atol=1e-5, rtol=0
    )
