"""Expresses torchvision's transforms, of `transforms` or `transforms.v2`, by our settings."""

from __future__ import annotations

from typing import Any

import torch

from offpath.errors import WrongOption
from offpath.handler.image.geometry import INTERPOLATIONS, format_size

# In this order; the other steps may be anywhere before Normalize.
ORDER = ["Resize", "CenterCrop", "Normalize"]
STEPS = (*ORDER, "ToTensor", "ToImage", "ToDtype", "Grayscale")


def read_transforms(processing: Any) -> dict[str, Any]:
    """Expresses a handler's `image_processing`.

    Returns:
        The `handler:` settings; without `image_size` if nothing resizes the images.

    Raises:
        WrongOption: names the step that no setting expresses.
    """
    steps = _list_steps(processing)
    named = {type(step).__name__: step for step in steps}
    order = [name for name in named if name in ORDER]
    is_last = "Normalize" in [*named][:-1]
    if len(named) < len(steps) or order != sorted(order, key=ORDER.index) or is_last:
        raise _refuse(f"the order {', '.join(type(step).__name__ for step in steps)}")
    for name, key, value in (("Grayscale", "num_output_channels", 1), ("ToDtype", "scale", True)):
        if name in named and getattr(named[name], key) != value:
            raise _refuse(f"{name} without {key}={value}")
    settings: dict[str, Any] = {"mean": [0.0], "std": [1.0]}
    if "Grayscale" in named:
        settings["channels"] = 1
    if "Normalize" in named:
        for key in settings.keys() & {"mean", "std"}:
            values = torch.as_tensor(getattr(named["Normalize"], key)).flatten()
            settings[key] = [float(f"{value:.6g}") for value in values.tolist()]
    return {**settings, **_read_size(named.get("Resize"), named.get("CenterCrop"))}


def _list_steps(processing: Any) -> list[Any]:
    name = type(processing).__name__
    if name == "Compose":
        return [step for part in processing.transforms for step in _list_steps(part)]
    if name not in STEPS or not type(processing).__module__.startswith("torchvision.transforms"):
        raise _refuse(name)
    return [processing]


def _read_size(resize: Any, crop: Any) -> dict[str, Any]:
    if resize is None:
        if crop is not None:
            raise _refuse("CenterCrop without Resize")
        return {"resize": "stretch"}  # which leaves images of the right size as they are
    sides = [resize.size] if isinstance(resize.size, int) else list(resize.size)
    interpolation = getattr(resize.interpolation, "value", resize.interpolation)
    if interpolation not in INTERPOLATIONS or resize.max_size is not None:
        raise _refuse(f"Resize with max_size, or with {interpolation}")
    if len(sides) == 1 and crop is None:
        raise _refuse(f"Resize({sides[0]}) without CenterCrop")
    return {
        "resize": "shorter" if len(sides) == 1 else "stretch",
        "resize_size": sides[0] if len(sides) == 1 else format_size(*sides),
        "image_size": format_size(*(sides if crop is None else crop.size)),
        "interpolation": interpolation,
    }


def _refuse(what: str) -> WrongOption:
    return WrongOption(
        f"{what} in its image_processing has no setting of ours; accepted: a Compose of Resize, "
        "CenterCrop, ToTensor and Normalize in this order, and Grayscale to one channel"
    )
