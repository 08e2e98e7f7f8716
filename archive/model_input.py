"""What a model takes and gives: run once on black pictures; the reason where settings disagree."""

from __future__ import annotations

import torch

from offpath.handler.errors import WrongOption
from offpath.handler.image.geometry import CHANNELS, Square

# A batch of one hides a model that can do nothing else.
BATCH = 2
# What models are usually trained at; tried where the settings' size is refused.
USUAL_SIZES = (
    *(224, 256, 288, 299, 300, 320, 336, 380, 384, 448, 456, 480, 512, 528, 600),
    *(32, 64, 96, 128, 160, 192, 240, 260, 640, 768, 1024),
)


def count_classes(module: torch.nn.Module, square: Square) -> int:
    """Runs black pictures through the model and returns the width of its output.

    Raises:
        WrongOption: it does not take them, or gives anything but [batch, classes]; one line.
    """
    module.eval()
    try:
        output = _run(module, square.channels, square.size)
    except Exception as error:
        reason = _find_reason(module, square) or format_error(error)
        raise WrongOption(
            f"the model does not take a float32 [{BATCH}, {square.channels}, {square.size}, "
            f"{square.size}]: {reason}"
        ) from error
    is_tensor = isinstance(output, torch.Tensor)
    if not is_tensor or output.ndim != 2 or len(output) != BATCH:
        shape = list(output.shape) if is_tensor else type(output).__name__
        raise WrongOption(
            f"a classifier returns [batch, classes]; for {BATCH} pictures this returned {shape}"
        )
    if not output.is_floating_point():
        raise WrongOption(
            f"a classifier returns scores; this returned {str(output.dtype)[6:]} (class indices?)"
        )
    return int(output.shape[1])


def format_error(error: BaseException) -> str:
    """An exception of somebody's model in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # TorchScript's come with its own traceback, the reason last.
    return lines[-1] if "TorchScript" in lines[0] else lines[0]


def _run(
    module: torch.nn.Module, channels: int, size: int, batch: int = BATCH
) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = module(torch.zeros(batch, channels, size, size))
    return output


def _find_reason(module: torch.nn.Module, square: Square) -> str | None:
    """Why it refuses the pictures, where another input shows it."""
    wanted = find_channels(module)
    if wanted is not None and wanted != square.channels:
        if wanted in CHANNELS:
            return (
                f"its first convolution takes {wanted} channels and handler.channels is "
                f"{square.channels}; pass --set channels={wanted} with --mean and --std"
            )
        return f"its first convolution takes {wanted} channels; accepted: 1 or 3"
    if _takes(module, square.channels, square.size, batch=1):
        return (
            "it takes one picture at a time; export it with a dynamic batch (torch.export: "
            "dynamic_shapes), or trace it with two pictures"
        )
    sizes = (n for n in USUAL_SIZES if _takes(module, square.channels, n))
    other = next(sizes, None)
    if other is None:
        return None
    return f"it takes {other} x {other} pixels; pass --set image_size={other}"


def find_channels(module: torch.nn.Module) -> int | None:
    """Channels of the first convolution; None for a model without one (or of depth by group)."""
    weights = (p for p in module.parameters() if p.dim() == 4)
    first = next(weights, None)
    return None if first is None else int(first.shape[1])


def _takes(
    module: torch.nn.Module, channels: int, size: int, batch: int = BATCH
) -> bool:
    try:
        _run(module, channels, size, batch)
    except Exception:
        return False
    return True
