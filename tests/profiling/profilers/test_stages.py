"""Stages are disjoint and add up exactly, on a clock that only moves when told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from ts.context import Context

from offpath.handler.errors import ExpectedError
from offpath.profiling.profilers.handler_driver import (
    Collector,
    Driver,
    LoadedHandler,
    make_metrics,
    make_requests,
)
from offpath.profiling.profilers.stages import (
    ClockedStages,
    clock_stages,
    collect_stages,
)
from tests.support.clock import Clock


def make_handler(clock: Clock) -> LoadedHandler:
    class Handler:
        def handle(self, data: list[Any], context: Any) -> list[str]:
            clock.pass_s(1)
            return self.postprocess(self.inference(self.preprocess(data)))

        def preprocess(self, data: list[Any]) -> list[Any]:
            clock.pass_s(2)
            for row in data:
                self.read_config(row)
            return data

        @staticmethod
        def read_config(row: Any) -> None:
            clock.pass_s(4)

        def inference(self, data: list[Any]) -> list[Any]:
            clock.pass_s(16)
            return data

        def postprocess(self, data: list[Any]) -> list[str]:
            clock.pass_s(32)
            return ["answer" for _ in data]

    instance = Handler()
    metrics = make_metrics()
    context = Context("m", "/nowhere", {}, 2, None, "0", True, metrics, {})
    return LoadedHandler(instance.handle, context, instance, ModuleType("its_module"))


def test_with_a_fake_clock_the_figures_are_exact():
    clock = Clock()
    handler = make_handler(clock)
    stages = ClockedStages(clock)
    clock_stages(handler, stages)
    driver = Driver(handler, [b"one", b"two"], 2, clock=clock)
    for sample in driver.run(3, stages):
        assert sample.size == 2
        assert sample.total_s == 1 + 2 + 2 * 4 + 16 + 32
        assert sample.stages_s == {
            "preprocess": 2.0,
            "read_config": 8.0,
            "inference": 16.0,
            "postprocess": 32.0,
        }


def test_a_stage_on_another_thread_is_inside_the_stage_that_waits_for_it():
    clock = Clock()
    stages = ClockedStages(clock)

    def work() -> None:
        with stages.stage("inner"):
            clock.pass_s(5)

    with stages.stage("outer"), ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert stages.take_batch()[0] == {"outer": 5.0}


def test_a_stage_that_raises_is_closed():
    clock = Clock()
    stages = ClockedStages(clock)
    with pytest.raises(ValueError, match="planted"), stages.stage("outer"):
        with stages.stage("inner"):
            clock.pass_s(3)
            raise ValueError("planted")
    assert stages.take_batch()[0] == {"outer": 0.0, "inner": 3.0}
    assert stages.take_batch()[0] == {}


def test_functions_of_the_handlers_module_are_stages_and_those_of_others_are_not():
    clock = Clock()
    stages = ClockedStages(clock)
    module = ModuleType("users_module")
    source = (
        "from json import dumps\n"
        "def decode(row):\n    return row\n"
        "def handle(data, context):\n    return [dumps(decode(row)) for row in data]\n"
    )
    exec(source, vars(module))
    handler = LoadedHandler(module.handle, None, None, module)
    clock_stages(handler, stages)
    module.handle(["a"], None)
    assert list(stages.take_batch()[0]) == ["decode"]


def test_our_handlers_own_timer_is_read_and_its_device_times_are_separate():
    from offpath.handler.classifier import OffpathClassifier
    from offpath.handler.stages import BatchTimings, Stage, StageTimer

    class Metrics:
        batches = 0

        def count_batch(self, timings: Any, size: int, errors: Any) -> None:
            self.batches += 1

    before = StageTimer.shared
    instance = OffpathClassifier()
    instance._metrics = Metrics()  # type: ignore[assignment]
    handler = LoadedHandler(instance.handle, None, instance, ModuleType("handler"))
    try:
        collector = collect_stages(handler)
        shares: dict[Stage, float] = {}
        with StageTimer().shared(shares):
            # handler/model/batch_runner.py does this on CUDA, with milliseconds of its events.
            shares.update({Stage.TRANSFER: 2.0, Stage.INFERENCE: 6.0})
        timings = BatchTimings({Stage.DECODE: 0.5, Stage.INFERENCE: 0.25}, 1.0)
        instance._metrics.count_batch(timings, 8, [])
        assert collector.take_batch() == (
            {"decode": 0.5, "inference": 0.25},
            {"transfer": 0.002, "inference": 0.006},
        )
    finally:
        StageTimer.shared = before  # type: ignore[method-assign]
    assert instance._metrics.batches == 1


def test_requests_have_torchserves_form_and_are_the_same_for_each_handler():
    pictures = [bytes([number]) for number in range(5)]
    first, again = make_requests(pictures), make_requests(pictures)
    requests = [next(first) for _ in range(10)]
    assert requests == [next(again) for _ in range(10)]
    bodies = [request["parameters"][0]["value"] for request in requests]
    assert all(isinstance(body, bytearray) for body in bodies)
    assert sorted(bodies[:5]) == pictures and bodies[:5] == bodies[5:]
    assert bodies[0] is not bodies[5]
    assert len({request["requestId"] for request in requests}) == 10


def test_replies_that_are_not_a_list_are_an_error():
    clock = Clock()
    handler = make_handler(clock)
    handler.entry = lambda rows, context: "all"
    driver = Driver(handler, [b"one"], 2)
    with pytest.raises(ExpectedError, match="2 requests with 'all'"):
        list(driver.run(1, Collector()))
