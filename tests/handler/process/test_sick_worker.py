from __future__ import annotations

import threading

import pytest
import torch

from offpath.handler.errors import ModelFailed, ModelOutOfMemory
from offpath.handler.model.device_errors import is_out_of_memory, is_sticky
from offpath.handler.process.sick_worker import (
    MAX_FAILURES_IN_A_ROW,
    MAX_OUT_OF_MEMORY_IN_A_ROW,
    ModelHealth,
)
from tests.guarantees import guarantee

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"
STICKY = [
    pytest.param(torch.AcceleratorError(ILLEGAL), id="accelerator-error"),
    pytest.param(RuntimeError("CUDA error: device-side assert"), id="device-assert"),
    pytest.param(
        RuntimeError(f"failed in the TorchScript interpreter.\nRuntimeError: {ILLEGAL}"),
        id="torchscript",
    ),
    pytest.param(Exception("FAIL : CUDA failure 700: an illegal"), id="onnx-runtime"),
    pytest.param(
        RuntimeError("decoding JPEG images: Failed to synchronize CUDA stream: 700"),
        id="torchvision",
    ),
]
MEMORY = [
    pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried to"), id="torch"),
    pytest.param(torch.AcceleratorError("CUDA error: out of memory"), id="driver"),
    pytest.param(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), id="cublas"),
    pytest.param(
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        id="cudnn",
    ),
    pytest.param(
        RuntimeError("Error while decoding JPEG images: Failed to decode batch: 5"),
        id="nvjpeg",
    ),
    pytest.param(
        RuntimeError("[enforce fail at alloc_cpu.cpp] Failed to allocate memory"),
        id="onnx-runtime",
    ),
    pytest.param(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), id="cpu"),
    pytest.param(MemoryError(), id="python"),
]
OTHER = [
    pytest.param(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), id="shape"),
    pytest.param(RuntimeError("Expected all tensors on cuda:0"), id="device-name"),
]


@guarantee(
    "A broken model on one worker",
    "handler/process/sick_worker.py",
    "        if is_sticky(error):",
    "        if False:",
)
@pytest.mark.parametrize("error", STICKY)
def test_a_sticky_error_ends_the_worker_at_once(error: Exception) -> None:
    health = ModelHealth()
    assert isinstance(health.fail_batch(error), ModelFailed)
    assert is_sticky(error) and health.diagnosis is not None
    assert "\n" not in health.diagnosis and type(error).__name__ in health.diagnosis
    assert "CUDA" in health.diagnosis


@guarantee(
    "Out of memory in the model",
    "handler/process/sick_worker.py",
    "if self.out_of_memory >= MAX_OUT_OF_MEMORY_IN_A_ROW:",
    "if self.out_of_memory >= 1:",
)
@pytest.mark.parametrize("error", MEMORY)
def test_out_of_memory_ends_the_worker_after_ten_batches_in_a_row(error: Exception) -> None:
    health = ModelHealth()
    for _ in range(MAX_OUT_OF_MEMORY_IN_A_ROW - 1):
        assert isinstance(health.fail_batch(error), ModelOutOfMemory)
    assert is_out_of_memory(error) and not is_sticky(error)
    assert (health.failures, health.diagnosis) == (0, None)
    health.fail_batch(error)
    assert health.diagnosis is not None
    assert "10 batches in a row ran out of memory" in health.diagnosis


@guarantee("A broken model on one worker")
@pytest.mark.parametrize("error", OTHER)
def test_any_other_error_ends_the_worker_after_some_in_a_row(error: Exception) -> None:
    health = ModelHealth()
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        assert isinstance(health.fail_batch(error), ModelFailed)
    health.fail_batch(MemoryError())
    assert health.diagnosis is None
    health.fail_batch(error)
    assert health.diagnosis is not None and "5 batches in a row" in health.diagnosis


def test_a_failure_before_the_model_counts_only_if_it_is_sticky() -> None:
    health = ModelHealth()
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        health.fail_batch(ValueError("a decoder's bug"), is_model=False)
    for _ in range(2 * MAX_OUT_OF_MEMORY_IN_A_ROW):
        health.fail_batch(MemoryError("50 megapixels"), is_model=False)
    assert (health.failures, health.diagnosis) == (0, None)
    health.fail_batch(torch.AcceleratorError(ILLEGAL), is_model=False)
    assert health.diagnosis is not None


def test_a_failed_batch_releases_the_tensors_of_its_frames() -> None:
    freed = threading.Event()

    class Big:
        def __del__(self) -> None:
            freed.set()

    def forward() -> None:
        big = Big()
        raise RuntimeError(f"CUDA out of memory {id(big)}")

    try:
        forward()
    except RuntimeError as error:
        ModelHealth().fail_batch(error)
        assert freed.is_set()
