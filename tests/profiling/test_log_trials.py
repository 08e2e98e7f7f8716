"""The prediction log under a real TorchServe; the full length is `offpath bench log-rounds`."""

from __future__ import annotations

import pytest

from offpath.profiling.experiments.log_trials.cost import measure_append_us
from offpath.profiling.experiments.log_trials.rounds import EVENTS, run_rounds


@pytest.mark.server
@pytest.mark.s3
@pytest.mark.slow
def test_one_round_of_each_kind_loses_nothing_and_doubles_nothing() -> None:
    said: list[str] = []

    result = run_rounds(
        rounds=len(EVENTS), clients=16, workers=2, seed=1, say=said.append
    )

    assert (result.lost, result.double) == ([], [])
    assert result.answered > 50
    assert len(said) == len(EVENTS)


def test_the_append_is_measured(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert 0 < measure_append_us(tmp_path, batches=50) < 1000
