"""The model: three outputs, one per kind of defect; a part may have several."""

from __future__ import annotations

from torch import nn


class Net(nn.Sequential):
    """A small convolutional network; [n, 3, h, w] -> [n, 3] before the sigmoid."""

    def __init__(self) -> None:
        super().__init__(
            *(
                nn.Conv2d(3, 16, 3, 2, 1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, 2, 1),
                nn.ReLU(),
            ),
            *(
                nn.Conv2d(32, 32, 3, 2, 1),
                nn.ReLU(),
                nn.AdaptiveMaxPool2d(1),
                nn.Flatten(),
            ),
            nn.Linear(32, 3),
        )
