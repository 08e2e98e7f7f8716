"""What may be tried, and what comes next."""

from __future__ import annotations

import pytest

from offpath.archive.model_config import load_preset
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tune_space import (
    SearchSpace,
    make_space,
    next_setting,
)
from offpath.profiling.servers.registering import Setting, read_setting


def test_the_default_space_follows_cores_and_clients():
    space = make_space(cores=2, clients=8, chosen={})
    assert space.batch_size == (1, 2, 4, 8)
    assert space.workers == (1, 2, 3)
    assert space.threads == (1, 2)
    assert make_space(16, 64, {}).threads == (1, 2, 4, 8, 16)
    assert make_space(12, 64, {}).threads == (1, 2, 4, 8)
    assert make_space(2, 32, {"workers": (4, 2, 4)}).workers == (2, 4)


def test_another_handler_sets_its_threads_itself():
    assert make_space(2, 32, {}, has_our_handler=False).threads == (0,)
    with pytest.raises(ExpectedError, match="--threads"):
        make_space(2, 32, {"threads": (1,)}, has_our_handler=False)


@pytest.mark.parametrize("choices", [(), (0,), (10**6,)])
def test_choices_that_torchserve_would_ignore_are_refused(choices):
    with pytest.raises(ExpectedError, match="choices of batch_size"):
        SearchSpace(choices, (1,), (1,), (1,))


def test_a_preset_is_a_setting_with_its_threads_counted():
    assert read_setting(load_preset("cpu"), cores=2) == Setting(8, 1, 2, 1)
    assert read_setting(load_preset("cpu"), cores=8).threads == 4
    own = {**load_preset("cpu"), "handler": {"threads": 3}}
    assert read_setting(own, cores=8).threads == 3
    assert read_setting(own, cores=8, has_our_handler=False).threads == 0


def choose(count: int, start: tuple[Setting, ...] = ()) -> list[Setting]:
    """Of a made-up server: larger batches are better, up to 8."""
    space = SearchSpace((1, 2, 4, 8, 16), (1, 5), (1, 2), (1, 2))
    done = list(start)
    while len(done) < count:
        scores = {s: min(s.batch_size, 8) - s.max_batch_delay_ms / 10 for s in done}
        setting = next_setting(space, scores, seed=1)
        if setting is None:
            break
        done.append(setting)
    return done


def test_no_setting_comes_twice_and_the_space_ends():
    done = choose(100)
    assert len(done) == len(set(done)) == 40


def test_an_interrupted_search_chooses_as_if_it_had_not_been():
    whole = choose(12)
    assert choose(12, start=tuple(whole[:7])) == whole


def test_good_settings_are_found_sooner_than_by_chance():
    # Two fifths of the space are among the best batch sizes.
    assert sum(setting.batch_size >= 8 for setting in choose(20)[10:]) >= 6


def test_a_preset_outside_of_the_space_does_not_disturb_the_search():
    assert len(set(choose(10, start=(Setting(7, 3, 9, 9),)))) == 10
