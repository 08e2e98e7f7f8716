"""The order of a worker's first CUDA calls, with recorders where the device would be."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.handler.classifier import OffpathClassifier
from offpath.handler.process import worker_setup
from offpath.handler.process.worker_setup import CU_CTX_SCHED_BLOCKING_SYNC, use_device
from tests.handler.conftest import make_context, make_runner, photographs


@pytest.fixture(autouse=True)
def keep_precision() -> Iterator[None]:
    product = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(product)
    torch.backends.cudnn.allow_tf32 = convolution


class Driver:
    """The three functions of the driver, as ctypes shows them."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxSetFlags_v2(self, device: ctypes.c_int, flags: int) -> int:
        self.calls.append(("flags", device.value, flags))
        return 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the calls that reach the device, in order. Only choosing a device succeeds."""
    made: list[Any] = []

    def init() -> None:
        made.append("another call")
        raise RuntimeError("no device")

    monkeypatch.setattr(worker_setup.ctypes, "CDLL", lambda name: Driver(made))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", init)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: made.append(("device", index)))
    return made


@pytest.mark.parametrize("blocking", [True, False])
def test_a_worker_chooses_its_device_before_any_other_cuda_call(
    calls: list[Any], model_dir: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    monkeypatch.syspath_prepend(str(model_dir))
    context = make_context(model_dir, threads=1, blocking_wait=blocking)
    context.system_properties["gpu_id"] = 1
    with pytest.raises(RuntimeError, match="no device"):  # the model's weights
        OffpathClassifier().initialize(context)
    flags = [("flags", 1, CU_CTX_SCHED_BLOCKING_SYNC)] if blocking else []
    assert calls == [*flags, ("device", 1), "another call"]


def test_fp32_on_a_device_is_fp32(calls: list[Any]) -> None:
    torch.set_float32_matmul_precision("high")  # as TorchServe does
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    use_device(0)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_keeps_the_flag_that_lets_waiting_threads_sleep() -> None:
    # In a process of its own, because this one has a context already.
    import subprocess
    import sys

    code = (
        "import ctypes, torch\n"
        "from offpath.handler.process.worker_setup import use_device\n"
        "use_device(0)\n"
        "torch.zeros(1, device='cuda').cpu()\n"
        "flags, active = ctypes.c_uint(), ctypes.c_int()\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "state = driver.cuDevicePrimaryCtxGetState\n"
        "assert state(0, ctypes.byref(flags), ctypes.byref(active)) == 0\n"
        "print(active.value, flags.value & 7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(CU_CTX_SCHED_BLOCKING_SYNC)]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_second_device_answers_like_the_first() -> None:
    from offpath.handler.config import HandlerConfig
    from offpath.handler.stages import StageTimer

    config = HandlerConfig.from_mapping({}, environ={})
    answers = []
    for index in (0, 1):
        use_device(index)
        runner = make_runner(config, max_batch=4, device=f"cuda:{index}")
        runner.warm_up()
        assert runner.captured_sizes == [1, 2, 4]
        for place, image in enumerate(photographs(3)):
            runner.pixels[place] = image
        answers.append(runner.run(3, StageTimer()).classes.tolist())
    use_device(0)
    assert answers[0] == answers[1]
