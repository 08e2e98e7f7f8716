"""Small Hugging Face models with random weights, as `save_pretrained` leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

LABELS = ["bent", "crack", "dent", "fine", "rust", "rust"]
# Two classes share a label, as in the ImageNet of many published models.
TOLD_APART = ["bent", "crack", "dent", "fine", "rust (4)", "rust (5)"]


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
    "perceiver": ("ResNet", RESNET, "Perceiver", {}),
}
