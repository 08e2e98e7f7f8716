from __future__ import annotations

from typing import Any

import pytest

from offpath.handler.config import HandlerConfig
from offpath.handler.contract import Item, Reply, Request
from offpath.handler.errors import (
    ConfigError,
    ExplanationsClosed,
    ExplanationTooLarge,
    TooManyExplanations,
)
from offpath.handler.model.explanations import Attribute, Explainer
from tests.guarantees import guarantee
from tests.support.clock import Clock


def make_explainer(clock: Clock, attribute: Attribute, is_open: bool = True) -> Explainer:
    return Explainer(attribute, is_open, max_bytes=100, classes=10, clock=clock)


def explain(explainer: Explainer, target: object = None) -> Reply:
    return explainer.explain(Item(Request(b""), target=target, index=0))


@guarantee("Explanations", "handler/model/explanations.py", "if not self._is_open:", "if False:")
def test_explanations_are_closed_by_default() -> None:
    assert not HandlerConfig().explanations
    with pytest.raises(ExplanationsClosed):
        explain(make_explainer(Clock(), lambda *_: [], is_open=False))


@guarantee(
    "Explanations",
    "handler/model/explanations.py",
    "self._next_s = end_s + PAUSE_FACTOR * (end_s - begin_s)",
    "self._next_s = end_s",
)
def test_explanations_take_at_most_a_quarter_of_a_workers_time() -> None:
    clock, spent_s = Clock(), 0.0

    def attribute(index: int, target: int) -> list[Any]:
        nonlocal spent_s
        clock.now_s += 0.8
        spent_s += 0.8
        return []

    explainer = make_explainer(clock, attribute)
    refused = 0
    while clock.now_s < 80:
        try:
            explain(explainer)
        except TooManyExplanations:
            refused += 1
            clock.now_s += 0.01
    assert refused and 0.2 < spent_s / clock.now_s < 0.3


@guarantee("Explanations")
def test_oversized_explanation_is_an_error_of_its_item() -> None:
    with pytest.raises(ExplanationTooLarge, match="at most 100"):
        explain(make_explainer(Clock(), lambda *_: [0.25] * 100))


@guarantee("Explanations")
@pytest.mark.parametrize("size, fits", [(224, True), (295, True), (336, False)])
def test_explanations_too_large_to_send_are_refused_by_the_settings(size: int, fits: bool) -> None:
    settings = {"image_size": size, "resize_size": size, "explanations": True}
    if fits:
        HandlerConfig.from_mapping(settings, environ={})
        return
    with pytest.raises(ConfigError, match="max_response_size"):
        HandlerConfig.from_mapping(settings, environ={})
    more = {**settings, "max_response_bytes": 10_000_000}
    assert HandlerConfig.from_mapping(more, environ={}).explanations
