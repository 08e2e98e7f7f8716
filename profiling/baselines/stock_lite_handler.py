"""TorchServe's stock image_classifier with the EfficientNet-Lite normalisation, nothing else."""

from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class StockLiteClassifier(ImageClassifier):
    """The stock handler; Lite models were trained on (x - 127) / 128."""

    image_processing = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.498] * 3, std=[0.502] * 3),
        ]
    )
