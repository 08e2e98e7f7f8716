"""The processes of one variant, with an engine that starts in a moment."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.engines_choice import EnginesChoices, Subject
from offpath.profiling.experiments.engines_team import Team

PROCESSES = 3


def make_team(folder: Path, variant: str = "quick fp32") -> Team:
    choices = EnginesChoices(
        models=("near-free",),
        engines=(),
        batch_sizes=(1, 8),
        rounds=1,
        seconds=0.01,
        processes=PROCESSES,
        device="cpu",
        workload="",
        seed=0,
        command="",
    )
    subject = Subject("near-free", variant, {"variant": variant}, folder)
    return Team(0, subject, choices, "tests.profiling.quick_engine")


def list_engines() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "quick_engine" in " ".join(child.cmdline())]


def test_windows_are_alone_then_together_then_with_all_threads(tmp_path):
    with make_team(tmp_path) as team:
        load = team.load()
        assert len(list_engines()) == PROCESSES + 1
        narrow = team.measure()
        wide = team.measure_wide()
        assert len(list_engines()) == 1
    assert list_engines() == []
    assert load.load_s == 0.01 and load.import_s > 0
    assert 0 < load.pss_bytes < PROCESSES * load.rss_bytes
    assert [(w.batch_size, w.processes, w.threads) for w in narrow] == [
        *((1, 1, 1), (1, PROCESSES, 1)),
        *((8, 1, 1), (8, PROCESSES, 1)),
    ]
    assert [(w.batch_size, w.images, w.threads) for w in wide] == [
        (1, [PROCESSES], PROCESSES),
        (8, [PROCESSES], PROCESSES),
    ]


def test_answers_on_all_photographs_and_on_the_gates_are_kept_apart(tmp_path):
    with make_team(tmp_path) as team:
        team.load()
        parity = team.check()
    assert (parity.photographs, parity.largest_move, parity.gate_changes) == (
        4,
        0.01,
        0,
    )


def test_an_engine_that_cannot_load_is_said_and_leaves_no_process(tmp_path):
    with pytest.raises(ExpectedError, match="broken of near-free: no such graph"):
        with make_team(tmp_path, "broken") as team:
            team.load()
    assert list_engines() == []
