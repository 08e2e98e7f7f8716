"""EfficientNet-Lite0 with 1000 classes, from the package efficientnet-lite-pytorch."""

from __future__ import annotations

import efficientnet_lite_pytorch


class EfficientNetLite0(efficientnet_lite_pytorch.EfficientNet):
    """The package's network; the published state dict fits it."""

    def __init__(self) -> None:
        super().__init__(*efficientnet_lite_pytorch.get_model_params("efficientnet-lite0", {}))
