"""Stages are disjoint and add up exactly, on a clock that only moves when told."""

from __future__ import annotations

from typing import Any

from offpath.profiling.profilers.collector import LoadedHandler, collect_stages
from offpath.profiling.profilers.handler_process import make_requests


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
