"""Tells the errors apart that a model and its device raise."""

from __future__ import annotations

import re

import torch

# As torch, ONNX Runtime and torchvision's decoder say it; TorchScript puts lines before it.
STICKY = re.compile(r"CUDA (?:error|failure)|Failed to synchronize CUDA stream")
# In torchvision's decoder and in torchcodec's, 5 is NVJPEG_STATUS_ALLOCATOR_FAILURE.
OUT_OF_MEMORY = re.compile(
    r"out of memory|(?:CUBLAS|CUDNN)_STATUS_(?:\w+_)?ALLOC(?:ATION)?_FAILED"
    r"|(?:failed to|can't) allocate memory|(?:decoding JPEG images|DecodeJpegCuda).*: 5$",
    re.IGNORECASE | re.MULTILINE,
)


def is_out_of_memory(error: Exception) -> bool:
    """Returns True if an error means that this batch did not fit into memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return bool(OUT_OF_MEMORY.search(str(error)))


def is_sticky(error: Exception) -> bool:
    """Returns True if every later CUDA call of this process will fail too."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError) or bool(STICKY.search(str(error)))


def name_error(error: Exception) -> str:
    """Returns an error's type and the line of its text that says most, as ASCII."""
    lines = str(error).splitlines() or [""]
    line = next(filter(STICKY.search, lines), lines[0])
    return f"{type(error).__name__}: {ascii(line)}"
