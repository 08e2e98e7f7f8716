"""Variants of the front end, and the table that is made of their figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from offpath.commands.bench_jvm import command
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments import jvm
from offpath.profiling.experiments.jvm import (
    COLUMNS,
    JvmChoices,
    JvmResult,
    VariantMeasurement,
)
from offpath.profiling.experiments.jvm_report import format_table
from offpath.profiling.experiments.jvm_variants import (
    SERIAL,
    Variant,
    list_jvm_variants,
    list_netty_variants,
)


def make_measurement(round_: int, variant: str, rate: float) -> VariantMeasurement:
    figures = dict.fromkeys(COLUMNS, 1.0) | {"req/s": rate, "failed": 0.0}
    return VariantMeasurement(round_, variant, "photos-55k", figures)


def test_the_table_has_medians_their_range_and_ratios_to_the_first_variant():
    rates = {"a": [100, 90, 110], "b": [240, 200, 300]}
    result = JvmResult("", "", {}, {}, {"a": {}, "b": {}})
    result.measurements = [
        make_measurement(round_, name, rate)
        for name, measured in rates.items()
        for round_, rate in enumerate(measured)
    ]
    text = format_table(result)
    assert "| a | 1.00 | 90-110 | 100.0 |" in text
    assert "| b | 2.40 | 200-300 | 240.0 |" in text


def test_a_figure_that_an_older_result_lacks_is_left_empty():
    result = JvmResult("", "", {}, {}, {"a": {}})
    figures = {"req/s": 100.0, "failed": 0.0}
    result.measurements = [VariantMeasurement(0, "a", "photos-55k", figures)]
    assert "| a | 1.00 | 100-100 | 100.0 |  |" in format_table(result)


def test_a_ratio_is_of_rounds_that_both_have():
    result = JvmResult("", "", {}, {}, {"a": {}, "b": {}})
    result.measurements = [
        *(make_measurement(n, "a", rate) for n, rate in enumerate([100, 200, 100])),
        # 1.2 times a in each round that it has.
        *(make_measurement(n, "b", rate) for n, rate in enumerate([120, 240])),
    ]
    assert "| b | 1.20 | 120-240 | 180.0 |" in format_table(result)


@dataclass
class ServerThatFails:
    """Starts unless its settings say `fails`; takes any load."""

    overrides: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, folder: Path) -> None:
        pass

    @contextmanager
    def running(self) -> Iterator[ServerThatFails]:
        if "fails" in self.overrides:
            raise ExpectedError("it does not start")
        yield self


class ReadyLoad:
    """A load generator that has nothing to do."""

    def check(self, *_: object) -> None:
        pass

    def run(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_variant_that_fails_is_left_out_and_the_others_go_on(
    side_by_side, monkeypatch
):
    monkeypatch.setattr(jvm, "make_offpath", lambda *_: ServerThatFails())
    monkeypatch.setattr(jvm, "load_model", lambda _: None)
    monkeypatch.setattr(jvm, "make_plan", lambda *_: None)
    monkeypatch.setattr(jvm, "CpuCost", lambda _: None)
    monkeypatch.setattr(jvm, "find_generator", lambda _: ReadyLoad())
    monkeypatch.setattr(jvm, "measure", lambda *_: dict.fromkeys(COLUMNS, 1.0))
    variants = {"bad": Variant({"fails": "yes"}), "good": Variant()}
    said: list[str] = []
    choices = JvmChoices(variants, 2, 1.0, "locust", side_by_side, "")
    result = jvm.measure_variants(choices, said.append, lambda _: None)
    assert result.left_out == {"bad": "it does not start"}
    assert said.count("bad is left out: it does not start") == 1
    assert {(m.round, m.variant) for m in result.measurements} == {
        (0, "good"),
        (1, "good"),
    }


def test_each_netty_variant_changes_what_is_shipped():
    variants = list_netty_variants(cores=2)
    assert next(iter(variants)) == "as shipped" and not variants["as shipped"].overrides
    changed = [dict(v.overrides) for v in variants.values()]
    assert all(changed[1:]) and len({str(one) for one in changed}) == len(changed)
    assert SERIAL.split()[-1] in variants["64 MB chunks"].overrides["vmargs"]


def test_other_collectors_keep_the_shipped_chunks():
    # Without them our direct buffers cost a factor of three.
    for variant in list_jvm_variants().values():
        assert "maxOrder=14" in variant.overrides["vmargs"]
        assert variant.overrides["vmargs"].count("-Xmx") <= 1


def test_another_java_is_found_only_while_its_variant_runs(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/before")
    with Variant(java_home=Path("/other")).chosen_java():
        assert os.environ["JAVA_HOME"] == "/other"
    assert os.environ["JAVA_HOME"] == "/before"
    monkeypatch.delenv("JAVA_HOME")
    with Variant(java_home=Path("/other")).chosen_java():
        assert os.environ["JAVA_HOME"] == "/other"
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("netty", [[], ["--netty"]], ids=["java", "netty"])
def test_a_wrong_name_lists_the_variants_of_its_group(netty):
    with pytest.raises(ExpectedError, match="no variant 'none'; there are: ") as error:
        CliRunner().invoke(command, [*netty, "none"], catch_exceptions=False)
    known = list_netty_variants(2) if netty else list_jvm_variants()
    assert next(iter(known)) in str(error.value)
