"""The study file: what is read is what was saved; another search is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.result import (
    TUNING,
    check_same_search,
)
from tests.profiling.tunings import make_tuning


def test_a_saved_search_is_read_back_whole(tmp_path):
    result = make_tuning()
    TUNING.save(result, tmp_path / "new" / "study.json")
    assert TUNING.load(tmp_path / "new" / "study.json") == result


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("{", "delimiter|Expecting", id="no-json"),
        pytest.param("[]", "as a result of `offpath tune`", id="no-object"),
        pytest.param('{"format": "offpath-bench/1"}', "offpath-tune/1", id="a-bench"),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, content, reason):
    path = tmp_path / "study.json"
    path.write_text(content)
    with pytest.raises(ExpectedError, match=reason):
        TUNING.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"model": "resnet50"}, "search.model: 'near-free', 'resnet50'", id="model"
        ),
        pytest.param(
            {"workload": {"name": "mine", "identity": "ef"}},
            "search.workload.name: 'photos', 'mine'",
            id="workload",
        ),
        pytest.param({"clients": 8}, "search.clients: 32, 8", id="clients"),
    ],
)
def test_the_study_of_another_search_is_refused_naming_the_difference(
    tmp_path, change, message
):
    earlier = make_tuning()
    with pytest.raises(ExpectedError, match=message):
        check_same_search(earlier, earlier.search | change, tmp_path / "study.json")


def test_the_same_search_goes_on(tmp_path):
    earlier = make_tuning()
    check_same_search(earlier, dict(replace(earlier).search), tmp_path)
