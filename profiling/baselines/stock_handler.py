"""TorchServe's stock image_classifier with the model's own preprocessing and number of classes."""

import json
from pathlib import Path

from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier

SETTINGS = json.loads((Path(__file__).parent / "stock_settings.json").read_text())


class StockClassifier(ImageClassifier):
    """The stock handler, which prepares images for ResNet and answers five classes or fails."""

    topk = SETTINGS["top_k"]
    image_processing = transforms.Compose(
        [
            transforms.Resize(SETTINGS["resize_size"]),
            transforms.CenterCrop(SETTINGS["image_size"]),
            transforms.ToTensor(),
            transforms.Normalize(mean=SETTINGS["mean"], std=SETTINGS["std"]),
        ]
    )
