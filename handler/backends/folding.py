"""Normalisation inside the first convolution: conv(x * s + b) = conv'(x), with w' = w * s.

The bias goes through the weights (sum of w * b). What pads the edge must be the pixel that
normalises to 0, the mean: so the picture is copied into a frame of it and conv' pads nothing.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Sequence
from typing import cast

import torch
from torch.utils.hooks import RemovableHandle

from offpath.handler.config import HandlerConfig
from offpath.handler.normalise import CHANNELS, PIXEL_MAX, Normaliser, scale_and_bias

logger = logging.getLogger(__name__)

# Of the largest logit: what float32 sums in another order may differ by.
TOLERANCE = 1e-4


class FoldedModel:
    """A model whose first convolution takes raw pixels.

    Args:
        model: the copy with the folded convolution.
        padding: rows and columns of the frame.
        config: size and mean.
        dtype: of the model. Pixels are exact in any: integers up to 256.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        padding: tuple[int, int],
        config: HandlerConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.model = model
        self._padding, self._size = padding, config.image_size
        self._pixel = (torch.tensor(config.mean) * PIXEL_MAX).to(device, dtype)
        self._frames = self._make_frames(0)

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [batch, size, size, 3] -> logits [batch, classes]."""
        batch, (rows, columns), size = pictures.shape[0], self._padding, self._size
        if batch > self._frames.shape[0]:
            self._frames = self._make_frames(batch)
        frames = self._frames[:batch]
        frames[:, rows : rows + size, columns : columns + size].copy_(pictures)
        logits: torch.Tensor = self.model(frames.permute(0, 3, 1, 2))
        return logits

    def _make_frames(self, batch: int) -> torch.Tensor:
        rows, columns = (self._size + 2 * p for p in self._padding)
        return self._pixel.expand(batch, rows, columns, CHANNELS).clone()


def fold_normalisation(
    model: torch.nn.Module,
    config: HandlerConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> FoldedModel | None:
    """Folds where the first thing that the model does to its input is a plain convolution.

    `model` keeps its convolution and shares all other weights with a float32 result.

    Returns:
        None where the model does not allow it, or where the folded one answers differently.
    """
    if dtype == torch.float16:
        return None  # weights / 58 would reach half precision's subnormal numbers
    foldable = [name for name, module in model.named_modules() if _is_foldable(module)]
    if not foldable:
        return None
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    probe = torch.randint(
        0, 256, (1, config.image_size, config.image_size, CHANNELS), dtype=torch.uint8
    ).to(device)
    normalised = Normaliser(config.mean, config.std, config.image_size, device)(probe)
    with torch.inference_mode():
        first, expected = _run_noting(model, foldable, normalised)
    if len(first) != 1:
        return None
    convolution = cast(torch.nn.Conv2d, model.get_submodule(first[0]))
    folded = FoldedModel(
        _copy_with(model, first[0], _fold(convolution, config)),
        _frame(convolution),
        config,
        device,
        torch.float32,
    )
    with torch.inference_mode():
        moved = (folded(probe) - expected).abs().max() / expected.abs().max()
    if not moved <= TOLERANCE:
        logger.warning("folded normalisation moves logits by %.1e: not used", moved)
        return None
    if dtype == torch.float32:
        return folded
    converted = copy.deepcopy(folded.model).to(dtype)
    return FoldedModel(converted, _frame(convolution), config, device, dtype)


def _run_noting(
    model: torch.nn.Module, names: Sequence[str], picture: torch.Tensor
) -> tuple[list[str], torch.Tensor]:
    """Runs the model; which of the named modules got the input itself, and the answer."""
    first: list[str] = []

    def watch(name: str) -> RemovableHandle:
        def note(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if inputs[0] is picture:
                first.append(name)

        return model.get_submodule(name).register_forward_pre_hook(note)

    handles = [watch(name) for name in names]
    try:
        return first, model(picture)
    finally:
        for handle in handles:
            handle.remove()


def _is_foldable(module: torch.nn.Module) -> bool:
    return (
        isinstance(module, torch.nn.Conv2d)
        and module.in_channels == CHANNELS
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _frame(convolution: torch.nn.Conv2d) -> tuple[int, int]:
    rows, columns = cast(tuple[int, int], convolution.padding)  # no string: foldable
    return rows, columns


def _fold(convolution: torch.nn.Conv2d, config: HandlerConfig) -> torch.nn.Conv2d:
    """The convolution on raw pixels; in float64, so that only the result is rounded."""
    scale, bias = (v.double() for v in scale_and_bias(config.mean, config.std))
    weight = convolution.weight.detach().double().cpu()
    shift = (weight * bias.view(1, CHANNELS, 1, 1)).sum((1, 2, 3))
    if convolution.bias is not None:
        shift += convolution.bias.detach().double().cpu()
    folded = torch.nn.Conv2d(
        CHANNELS,
        convolution.out_channels,
        convolution.kernel_size,  # type: ignore[arg-type]
        convolution.stride,  # type: ignore[arg-type]
        dilation=convolution.dilation,  # type: ignore[arg-type]
    )
    with torch.no_grad():
        folded.weight.copy_(weight * scale.view(1, CHANNELS, 1, 1))
        folded.bias.copy_(shift)  # type: ignore[union-attr]
    folded = folded.to(convolution.weight.device)
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return folded.eval()


def _copy_with(
    model: torch.nn.Module, name: str, convolution: torch.nn.Module
) -> torch.nn.Module:
    """A copy of the model that shares its weights, with one module exchanged."""
    if not name:
        return convolution
    tensors = itertools.chain(model.parameters(), model.buffers())
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    parent, _, attribute = name.rpartition(".")
    setattr(copied.get_submodule(parent), attribute, convolution)
    return copied
