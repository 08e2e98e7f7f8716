"""A model as TorchServe's own examples define it: one class, which its stock handler finds."""

from torchvision.models.resnet import BasicBlock, ResNet


class ImageClassifier(ResNet):
    """A ResNet-18 for 1,000 classes."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2])
