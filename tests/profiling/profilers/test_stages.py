"""Stages are disjoint and add up exactly, on a clock that only moves when told."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from ts.context import Context

from offpath.errors import ExpectedError
from offpath.profiling.profilers.collector import Collector, LoadedHandler
from offpath.profiling.profilers.handler_process import Driver, make_metrics, make_requests
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

    # Not this one, whose functions would get clocks too.
    Handler.__module__ = "its_module"
    sys.modules["its_module"] = ModuleType("its_module")
    instance = Handler()
    metrics = make_metrics()
    context = Context("m", "/nowhere", {}, 2, None, "0", True, metrics, {})
    return LoadedHandler(instance.handle, context)


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
    assert stages.take_batch() == {"outer": 5.0}


def test_a_stage_that_raises_is_closed():
    clock = Clock()
    stages = ClockedStages(clock)
    with pytest.raises(ValueError, match="planted"), stages.stage("outer"):
        with stages.stage("inner"):
            clock.pass_s(3)
            raise ValueError("planted")
    assert stages.take_batch() == {"outer": 0.0, "inner": 3.0}
    assert stages.take_batch() == {}


def test_functions_of_the_handlers_module_are_stages_and_those_of_others_are_not():
    clock = Clock()
    stages = ClockedStages(clock)
    module = sys.modules["users_module"] = ModuleType("users_module")
    source = (
        "from json import dumps\n"
        "def decode(row):\n    return row\n"
        "def handle(data, context):\n    return [dumps(decode(row)) for row in data]\n"
    )
    exec(source, vars(module))
    handler = LoadedHandler(module.handle, None)
    clock_stages(handler, stages)
    module.handle(["a"], None)
    assert list(stages.take_batch()) == ["decode"]


def test_our_handlers_own_timer_is_read():
    from offpath.handler.classifier import OffpathClassifier
    from offpath.handler.stages import BatchTimings, Stage

    class Metrics:
        batches = 0

        def count_batch(self, timings: Any, size: int, errors: Any) -> None:
            self.batches += 1

    instance = OffpathClassifier()
    instance._metrics = metrics = Metrics()  # type: ignore[assignment]
    collector = collect_stages(LoadedHandler(instance.handle, None))
    timings = BatchTimings({Stage.DECODE: 0.5, Stage.INFERENCE: 0.25}, 1.0)
    metrics.count_batch(timings, 8, [])
    assert collector.take_batch() == {"decode": 0.5, "inference": 0.25}
    assert collector.take_batch() == {} and metrics.batches == 1


def test_requests_have_torchserves_form_and_are_the_same_for_each_handler():
    images = [bytes([number]) for number in range(5)]
    first, again = make_requests(images), make_requests(images)
    requests = [next(first) for _ in range(10)]
    assert requests == [next(again) for _ in range(10)]
    bodies = [request["parameters"][0]["value"] for request in requests]
    assert all(isinstance(body, bytearray) for body in bodies)
    assert sorted(bodies[:5]) == images and bodies[:5] == bodies[5:]
    assert bodies[0] is not bodies[5]
    assert len({request["requestId"] for request in requests}) == 10


def test_replies_that_are_not_a_list_are_an_error():
    clock = Clock()
    handler = make_handler(clock)
    handler.entry = lambda rows, context: "all"
    driver = Driver(handler, [b"one"], 2)
    with pytest.raises(ExpectedError, match="2 requests with 'all'"):
        list(driver.run(1, Collector()))
