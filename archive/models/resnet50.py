"""torchvision's ResNet-50 with 1000 classes."""

from __future__ import annotations

from torchvision.models import resnet


class ResNet50(resnet.ResNet):
    """The network of `torchvision.models.resnet50()`; its state dicts fit.

    It maps float32 [batch, 3, 224, 224] to logits [batch, 1000].
    """

    def __init__(self) -> None:
        super().__init__(resnet.Bottleneck, [3, 4, 6, 3])
