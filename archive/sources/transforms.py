"""Expresses torchvision's transforms, of `transforms` or `transforms.v2`, by our settings."""

from __future__ import annotations

from typing import Any

import torch

from offpath.errors import WrongOption
from offpath.handler.image.geometry import format_size

# Accepted orders of all steps but those that may stand anywhere.
ORDERS = [
    [*size, *normalised]
    for size in ([], ["Resize"], ["Resize", "CenterCrop"])
    for normalised in ([], ["Normalize"])
]
# The settings that a conversion takes over from a handler.
DERIVED = (
    *("mean", "std", "channels", "resize", "resize_size", "image_size", "interpolation"),
    "top_k",
)
ANYWHERE = ("ToTensor", "Grayscale")


def read_transforms(processing: Any) -> dict[str, Any]:
    """Expresses a handler's `image_processing`.

    Returns:
        The `handler:` settings; without `image_size` if nothing resizes the images.

    Raises:
        WrongOption: names the steps, which no settings express.
    """
    steps = getattr(processing, "transforms", [processing])
    names = [type(step).__name__ for step in steps]
    named = dict(zip(names, steps))
    resize, grey = named.get("Resize"), named.get("Grayscale")
    if (
        [name for name in names if name not in ANYWHERE] not in ORDERS
        or (grey is not None and grey.num_output_channels != 1)
        or (resize is not None and resize.max_size is not None)
    ):
        raise WrongOption(
            f"its image_processing is {', '.join(names)}, which no settings express; "
            "accepted: Resize, CenterCrop and Normalize in this order, ToTensor, and Grayscale to "
            "one channel"
        )
    settings: dict[str, Any] = {"mean": [0.0], "std": [1.0]}
    if grey is not None:
        settings["channels"] = 1
    if "Normalize" in named:
        for key in ("mean", "std"):
            values = torch.as_tensor(getattr(named["Normalize"], key)).flatten()
            settings[key] = [float(f"{value:.6g}") for value in values.tolist()]
    if resize is None:
        # Leaves images of the right size as they are.
        return {**settings, "resize": "stretch"}
    return {**settings, **_read_size(resize, named.get("CenterCrop"))}


def _read_size(resize: Any, crop: Any) -> dict[str, Any]:
    sides = [resize.size] if isinstance(resize.size, int) else list(resize.size)
    if len(sides) == 1 and crop is None:
        raise WrongOption(f"its image_processing has Resize({sides[0]}) without CenterCrop")
    return {
        "resize": "shorter" if len(sides) == 1 else "stretch",
        "resize_size": sides[0] if len(sides) == 1 else format_size(*sides),
        "image_size": format_size(*(sides if crop is None else crop.size)),
        "interpolation": getattr(resize.interpolation, "value", resize.interpolation),
    }
