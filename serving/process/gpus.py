"""Lists the GPUs that the workers of a model take in turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__)


def list_gpus(device: str | None, ids: Sequence[int]) -> list[int]:
    """Returns the indexes of a model's GPUs; none if it runs on the CPU.

    Args:
        device: `deviceType` of the archive.
        ids: its `deviceIds`. Like TorchServe, this function ignores a list that names a device
            which is not there.
    """
    if device == "cpu":
        return []
    import torch

    count = torch.cuda.device_count()
    if ids and count and max(ids) < count:
        return list(ids)
    if ids:
        logger.warning("deviceIds %s are ignored: this host has %d GPUs", ids, count)
    return list(range(count))
