"""What is searched, and which candidate comes next."""

from __future__ import annotations

import pytest

from offpath.archive.model_config import load_preset
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.choice import summarise
from offpath.profiling.experiments.tuning.sampler import next_candidate
from offpath.profiling.experiments.tuning.space import (
    Candidate,
    SearchSpace,
    make_space,
    read_candidate,
)
from tests.profiling.tunings import make_window

SPACE = SearchSpace((1, 2, 4, 8, 16), (1, 5), (1, 2), (1, 2))


def test_the_default_space_follows_cores_and_clients():
    space = make_space(cores=2, clients=8, chosen={})
    assert space.batch_size == (1, 2, 4, 8)
    assert space.workers == (1, 2, 3)
    assert space.threads == (1, 2)
    assert make_space(16, 64, {}).threads == (1, 2, 4, 8, 16)


def test_own_choices_replace_the_defaults():
    space = make_space(2, 32, {"workers": (4, 2, 4)})
    assert space.workers == (2, 4)


def test_another_handler_sets_its_threads_itself():
    assert make_space(2, 32, {}, has_our_handler=False).threads == (0,)
    with pytest.raises(ExpectedError, match="--threads"):
        make_space(2, 32, {"threads": (1,)}, has_our_handler=False)


@pytest.mark.parametrize("choices", [(), (0,), (10**6,)])
def test_choices_that_torchserve_would_ignore_are_refused(choices):
    with pytest.raises(ExpectedError, match="choices of batch_size"):
        SearchSpace(choices, (1,), (1,), (1,))


def test_a_preset_is_a_candidate_with_its_threads_counted():
    assert read_candidate(load_preset("cpu"), cores=2) == Candidate(8, 1, 2, 1)
    assert read_candidate(load_preset("cpu"), cores=8).threads == 4
    own = {**load_preset("cpu"), "handler": {"threads": 3}}
    assert read_candidate(own, cores=8).threads == 3
    assert read_candidate(own, cores=8, has_our_handler=False).threads == 0


def measure(candidate: Candidate) -> float:
    """A made-up server: larger batches are better, up to 8."""
    return 100 + 10 * min(candidate.batch_size, 8) - candidate.max_batch_delay_ms


def run(sampler: str, count: int, start: tuple[Candidate, ...] = ()) -> list[Candidate]:
    done = list(start)
    while len(done) < count:
        summaries = [summarise(c, [make_window(measure(c), 50)]) for c in done]
        candidate = next_candidate(sampler, SPACE, summaries, 100, seed=1)
        if candidate is None:
            break
        done.append(candidate)
    return done


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_no_candidate_comes_twice_and_the_space_ends(sampler):
    done = run(sampler, 100)
    assert len(done) == len(set(done)) == SPACE.size == 40


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_an_interrupted_search_goes_on_as_if_it_had_not_been(sampler):
    whole = run(sampler, 12)
    assert run(sampler, 12, start=tuple(whole[:7])) == whole


def test_tpe_finds_good_candidates_sooner_than_chance():
    # Two fifths of the space are among the best batch sizes.
    found = run("tpe", 20)[10:]
    assert sum(c.batch_size >= 8 for c in found) >= 6


def test_a_preset_outside_of_the_space_does_not_disturb_the_search():
    odd = Candidate(7, 3, 9, 9)
    done = run("tpe", 10, start=(odd,))
    assert len(set(done)) == 10
