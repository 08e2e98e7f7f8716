from __future__ import annotations

import numpy as np
from PIL import Image
from torchvision.transforms import v2

from offpath.handler.image.decode import DecodedImage
from offpath.handler.image.geometry import InputGeometry
from offpath.handler.image.transform import transform_image
from tests.support.photographs import find_photograph

# The transforms of TorchServe's image_classifier.
STOCK = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])


def test_random_sizes_are_transformed_as_by_torchvision() -> None:
    generator = np.random.default_rng(0)
    photograph = find_photograph("motorcycle_left").rgb
    for _ in range(100):
        width, height = (int(side) for side in generator.integers(2, 900, 2))
        image = photograph.resize((width, height), Image.Resampling.NEAREST)
        made = transform_image(DecodedImage(np.asarray(image), height, width), InputGeometry())
        assert (made.dtype, made.shape) == (np.uint8, (224, 224, 3))
        # Equal but for rounding: one level, in one value of four at most.
        difference = np.abs(made.astype(int) - np.asarray(STOCK(image)))
        assert difference.max() <= 1, image.size
        assert (difference > 0).mean() < 0.25, image.size
