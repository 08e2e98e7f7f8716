"""Models of torchvision and timm with their published weights: built as the packages build them.

The files of weights are imitated: seeded values in the published layout under the published name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import models

from offpath.archive.build import save_weights
from offpath.archive.model_probe import count_classes
from offpath.archive.sources.model_source import ModelSource
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.model.weights import make_with_weights
from tests.archive.conftest import load, run_definition

# The smallest model of each family with what its builder passes for published weights only.
QUICK: dict[str, dict[str, Any]] = {
    "densenet121": {},
    "googlenet": {"transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
    "mnasnet0_5": {},
    "squeezenet1_1": {},
}
SLOW = """alexnet convnext_tiny efficientnet_b0 efficientnet_v2_s maxvit_t mnasnet0_75 mobilenet_v2
    mobilenet_v3_small resnet18 regnet_y_400mf resnext50_32x4d shufflenet_v2_x0_5 swin_t swin_v2_t
    vgg11 vit_b_16 wide_resnet50_2""".split()
pytestmark = pytest.mark.usefixtures("one_thread")


def name_as_published(name: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gives weights the names that they have in the published file."""
    if name.startswith("densenet"):  # written before there were counters
        layer = re.compile(r"(denselayer\d+\.(?:norm|conv))([12]\.)")
        old = {layer.sub(r"\1.\2", key): value for key, value in weights.items()}
        return {key: value for key, value in old.items() if "num_batches" not in key}
    return weights


def make_model(name: str, **arguments: Any) -> torch.nn.Module:
    """Makes a seeded model whose answers depend on the image."""
    torch.manual_seed(7)
    model = models.get_model(name, **{**QUICK.get(name, {}), **arguments})
    if name == "mnasnet0_5":  # of the first version, which has another stem
        weights = model.state_dict()
        weights._metadata[""]["version"] = 1
        with pytest.raises(RuntimeError, match="shape"):
            model.load_state_dict(weights)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.out_features == 1000:
            torch.nn.init.normal_(layer.weight)  # a ViT's is 0, and AlexNet's small
    model.eval()  # only the normalisation learns from the images
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1
            layer.train()
    with torch.no_grad():
        model(make_images(name, 2))
    return model.eval()


def make_images(name: str, count: int) -> torch.Tensor:
    torch.manual_seed(3)
    size = {"maxvit_t": 224, "vit_b_16": 224, "inception_v3": 80}.get(name, 64)
    return torch.rand(count, 3, 1, 1) * 2 + torch.rand(count, 3, size, size) - 1


def publish(folder: Path, name: str, **arguments: Any) -> Path:
    """Writes the file where torchvision looks for downloads."""
    (folder / "hub/checkpoints").mkdir(parents=True)
    url = models.get_model_weights(name).DEFAULT.url
    path = folder / "hub/checkpoints" / Path(url).name
    torch.save(name_as_published(name, make_model(name, **arguments).state_dict()), path)
    return path


def make_as_worker(source: ModelSource, folder: Path) -> torch.nn.Module:
    (folder / "weights.pt").write_bytes(save_weights(source))
    return make_with_weights(lambda: run_definition(source, folder), f"{folder}/weights.pt").eval()


def assert_same_answers(name: str, found: torch.nn.Module, expected: torch.nn.Module) -> None:
    images = make_images(name, 2)
    with torch.inference_mode():
        ours, theirs = found(images), expected.eval()(images)
    assert theirs.std(0).mean() > 1e-3, "or every model gives these answers"
    torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0.001 * float(theirs.std()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_published_weights_answer_as_torchvisions_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = publish(tmp_path, name)
    source, _ = load(f"torchvision:{name}", "pretrained")
    theirs = models.get_model(name, weights="DEFAULT")
    assert_same_answers(name, make_as_worker(source, tmp_path), theirs)
    # The same file, downloaded elsewhere and passed by its path.
    given, said = load(f"torchvision:{name}", str(path))
    assert (given.definition, given.labels) == (source.definition, source.labels)
    assert all(torch.equal(given.weights[key], value) for key, value in source.weights.items())
    assert not any("warning" in line for line in said)


@pytest.mark.filterwarnings("ignore")
def test_own_weights_bring_their_classes_and_a_warning_where_training_matters(
    tmp_path: Path,
) -> None:
    model = models.get_model("googlenet", num_classes=6, aux_logits=False, init_weights=False)
    torch.save(model.state_dict(), tmp_path / "own.pt")
    source, said = load("torchvision:googlenet", str(tmp_path / "own.pt"))
    assert "num_classes=6" in source.definition and source.labels is None
    assert count_classes(source.module, InputGeometry()) == 6
    assert source.handler["image_size"] == 224 and source.handler["interpolation"] == "bilinear"
    assert any("preprocessing of its published weights" in line for line in said)
    run_definition(source, tmp_path).load_state_dict(dict(source.weights))
    assert any("warning" in line and "'transform_input': True" in line for line in said)


def test_timm_leaves_out_what_its_published_files_have_beside(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    weights = timm.create_model("levit_128s", num_classes=6).state_dict()
    weights["blocks.0.attn.attention_bias_idxs"] = torch.zeros(2)
    torch.save(weights, tmp_path / "own.pt")
    source, _ = load("timm:levit_128s", str(tmp_path / "own.pt"))
    assert source.weights.keys() == weights.keys() - {"blocks.0.attn.attention_bias_idxs"}
    assert all(torch.equal(value, weights[key]) for key, value in source.weights.items())
