"""Conditions of `--fail-if`: their forms, and where a condition holds."""

from __future__ import annotations

import pytest

from offpath.profiling.core.conditions import parse_condition
from offpath.profiling.core.statistics import Summary
from tests.profiling.runs import make_compare


def find(text: str, summary: Summary | None = None) -> list[str]:
    return [*parse_condition(text).find_met(summary or Summary(make_compare()))]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("rate<100", ["torchserve-stock"], id="less"),
        pytest.param("rate > 100", ["offpath"], id="blanks"),
        pytest.param("rate>=11", ["torchserve-stock", "offpath"], id="at-least"),
        pytest.param("rate == 11", ["torchserve-stock"], id="equal"),
        pytest.param("rate != 11", ["offpath"], id="unequal"),
        pytest.param("rate<=1.1e1", ["torchserve-stock"], id="exponent"),
        pytest.param("offpath:rate<100", [], id="of-one-variant"),
        pytest.param("p99_ms>100", [], id="percentile-below"),
        pytest.param("p99_ms>99", ["torchserve-stock", "offpath"], id="percentile"),
        pytest.param("failed>0", [], id="failed"),
    ],
)
def test_a_condition_holds_in_a_cell_of_a_variant(text: str, where: list[str]) -> None:
    met = find(text)
    assert [said.split("(")[1].split(",")[0] for said in met] == where
    assert all(said.startswith(f"{text}: ") for said in met)


def test_what_was_not_measured_is_no_success() -> None:
    assert find("offpath:gpu_percent>90") == [
        "offpath:gpu_percent>90: not measured (offpath, photos, 32 clients)"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("p99_ms", "expected METRIC", id="no-sign"),
        pytest.param("p99_ms=1", "expected METRIC", id="assignment"),
        pytest.param("p99_ms>", "expected METRIC", id="no-number"),
        pytest.param("p99_ms>fast", "'fast' is not a number", id="word"),
        pytest.param("p98_ms>1", "no metric 'p98_ms'; there are: p50_ms", id="unknown"),
        pytest.param("__import__('os')>1", "expected METRIC", id="code"),
        pytest.param("rate>1 or rate<2", "expected METRIC", id="two"),
        pytest.param("", "expected METRIC", id="empty"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="'") as refused:
        parse_condition(text)
    assert said in str(refused.value)


def test_a_variant_that_was_not_measured_is_named_with_those_that_were() -> None:
    with pytest.raises(ValueError, match="there are: torchserve-stock, offpath"):
        find("triton:rate<1")
