"""Folders of Hugging Face models answer as transformers' own pipeline does."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from offpath.archive.labels import read_labels
from offpath.archive.model_probe import find_output
from offpath.archive.photograph_sets import decode_photograph
from offpath.archive.photographs import BUNDLED
from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.outputs import keep_one_output
from tests.archive.conftest import run_definition

LABELS = ["bent", "crack", "dent", "fine", "rust", "rust"]
# Two classes share a label, as in the ImageNet of many published models.
TOLD_APART = ["bent", "crack", "dent", "fine", "rust (4)", "rust (5)"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
SQUARE = {"size": {"height": 96, "width": 96}}
CROPPED = {"crop_size": {"height": 224, "width": 224}}
HALF = {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}
# kind -> model, its configuration, image processor and its settings.
MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "vit": ("ViT", {**SMALL, "image_size": 96}, "ViT", SQUARE),
    "resnet": ("ResNet", RESNET, "ConvNext", {"size": {"shortest_edge": 224}}),
    "resnet-384": ("ResNet", RESNET, "ConvNext", {"size": {"shortest_edge": 384}}),
    "resnet-half": (
        *("ResNet", RESNET, "ViT"),
        {"size": {"height": 64, "width": 128}, **HALF},
    ),
    "resnet-bgr": (
        *("ResNet", RESNET, "MobileViT"),
        {"size": {"shortest_edge": 256}, **CROPPED},
    ),
    "resnet-levit": ("ResNet", RESNET, "Levit", {}),
    "dinov2": (
        *("Dinov2", {**SMALL, "image_size": 224}, "Bit"),
        {"size": {"shortest_edge": 256}, **CROPPED},
    ),
}
# The parity gate's bound. Where the margin of a crop is odd, transformers cuts one pixel before us.
TOLERANCE = 0.05


def write_model(kind: str, folder: Path) -> Path:
    """Writes one of `MODELS` with its image processor."""
    import transformers  # half a second, which each test process would spend

    torch.manual_seed(0)
    labels = dict(enumerate(LABELS))
    name, config, processor, settings = MODELS[kind]
    made = getattr(transformers, f"{name}Config")(id2label=labels, **config)
    model = getattr(transformers, f"{name}ForImageClassification")(made).eval()
    last = [it for it in model.modules() if isinstance(it, torch.nn.Linear)][-1]
    with torch.no_grad():
        torch.nn.init.normal_(last.weight, std=2)  # so that photographs differ
    model.save_pretrained(folder)
    getattr(transformers, f"{processor}ImageProcessor")(**settings).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def no_network() -> Any:
    """Lets every connection fail, because only the folder may be read."""

    def refuse(*_: object) -> None:
        raise AssertionError("the network is used")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("vit", tmp_path_factory.mktemp("models") / "my-vit")


def load(folder: Path) -> tuple[ModelSource, list[str]]:
    said: list[str] = []
    return load_model_source(str(folder), None, said.append), said


def ask(source: ModelSource, photograph: Path) -> list[float]:
    """Returns what our archive of the model answers, by class."""
    settings = {**source.handler, "decode": "exact"}
    config = HandlerConfig.from_mapping(settings, environ={})
    output = find_output(source.module, config.input_geometry, None, str)
    model = keep_one_output(source.module, output).eval()
    pixels = decode_photograph(photograph.read_bytes(), config)
    engine = EagerEngine(model, config, torch.device("cpu"))
    with torch.inference_mode():
        scores = torch.softmax(engine(torch.tensor(pixels)[None]), 1)[0]
    return [float(score) for score in scores]


def assert_as_pipeline(folder: Path) -> None:
    import transformers

    source, _ = load(folder)
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    # The pipeline's answers are by label.
    model.config.id2label = dict(enumerate(TOLD_APART))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pipeline = transformers.pipeline("image-classification", model=model, image_processor=processor)
    spread = 0.0
    for photograph in sorted(BUNDLED.glob("*.jpg")):
        with Image.open(photograph) as image:
            answers = pipeline(image.convert("RGB"), top_k=6)
        expected = {one["label"]: one["score"] for one in answers}
        spread = max(spread, max(expected.values()) - min(expected.values()))
        found = dict(zip(TOLD_APART, ask(source, photograph)))
        assert found == pytest.approx(expected, abs=TOLERANCE)
    assert spread > 5 * TOLERANCE  # or another crop would pass too


def test_model_labels_and_preprocessing_come_from_the_folder(vit: Path, tmp_path: Path) -> None:
    source, said = load(vit)
    assert source.labels == TOLD_APART == read_labels(vit / "config.json")
    assert source.handler == {
        **{"image_size": 96, "resize": "stretch", "resize_size": 96},
        **{"interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    assert len(said) == 1 and "ViTImageProcessor" in said[0] and "differ" in said[0]
    # The archive's definition needs no folder, and the weights fit it.
    made = run_definition(source, tmp_path).eval()
    assert source.weights is not None and source.users_file is None
    made.load_state_dict(dict(source.weights))
    images = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(made(images).logits, source.module.eval()(images).logits)
    assert_as_pipeline(vit)


@pytest.mark.parametrize(
    "kind",
    [
        "resnet",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in MODELS
            if kind not in ("vit", "resnet")
        ),
    ],
)
def test_answers_are_those_of_the_pipeline(kind: str, tmp_path: Path) -> None:
    assert_as_pipeline(write_model(kind, tmp_path / kind))


CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
# What is changed in which file, or None where it is missing, and what is said.
BY_NAME: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "code": (CONFIG, {"auto_map": {"AutoModel": "a.B"}}, "config.json has 'auto_map'"),
    "code of the processor": (
        *(PROCESSOR, {"auto_map": {"AutoImageProcessor": "evil.Processor"}}),
        "preprocessor_config.json has 'auto_map'",
    ),
    "kernel": (
        CONFIG,
        {"attn_implementation": "a/b"},
        "'attn_implementation', which asks for code",
    ),
    **{
        f"timm: {json.dumps(update)}": (
            *(CONFIG, {"model_type": "timm_wrapper", **update}),
            f"'{next(iter(update))}', which asks for code",
        )
        for update in (
            {"model_args": {"checkpoint_path": "evil.pth"}},
            {"model_args": {"pretrained_cfg_overlay": {"file": "evil.pth"}}},
            {"backbone_kwargs": {"checkpoint_path": "evil.pth"}},
            {"architecture": "hf-hub:someone/evil"},
        )
    },
    "step": (PROCESSOR, {"do_pad": True}, "do_pad is True, .*; accepted: do_center_crop"),
    "no crop": (PROCESSOR, {"size": {"shortest_edge": 96}}, "size is .*; accepted: shortest_edge"),
    "other weights": (
        CONFIG,
        {"num_hidden_layers": 3},
        "its weights lack vit.*; expected the fold",
    ),
    "no configuration": (CONFIG, None, "no config.json there; expected a folder that save_pre"),
    "pickled": ("model.safetensors", None, "pickled weights are not read; save the model again"),
    "no processor": (PROCESSOR, None, "add it with processor.save_pretrained"),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_cannot_be_served_is_refused_by_name(vit: Path, tmp_path: Path, name: str) -> None:
    file, changes, message = BY_NAME[name]
    folder = Path(shutil.copytree(vit, tmp_path / "my-vit"))
    if changes is None:
        (folder / file).rename(folder / "pytorch_model.bin")
    else:
        settings = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**settings, **changes}))
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(WrongOption, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
