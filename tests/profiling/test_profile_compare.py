from __future__ import annotations

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.in_process.compare_report import to_data
from offpath.profiling.in_process.profile_compare import compare_profiles, find_notes
from offpath.profiling.in_process.profile_result import BatchSample
from tests.profiling.profiles import (
    make_function,
    make_handler,
    make_profile,
    make_server,
)

HOST = {"cpu": "some", "cores": 2, "packages": {"torch": "2.14.1"}}
SETTINGS = {"requests": 800, "batch_size": 8, "seed": 0}
WORKLOAD = {"name": "photos", "identity": "ab", "mean_bytes": 55000, "count": 32}


def test_stages_are_compared_with_the_ratio_of_the_second_to_the_first():
    (pair,) = compare_profiles(make_profile(), make_profile(make_handler(factor=2)))
    rows = {row.name: row for row in pair.tables["stages"]}
    assert rows["decode"].ratio == pytest.approx(2)
    assert rows["other"].ratio == pytest.approx(1)
    assert list(rows)[-1] == "total"


def test_buckets_are_compared_an_image():
    one = make_handler(functions=[make_function("open", "file I/O", 0.8)])
    other = make_handler(functions=[make_function("go", "forward", 0.4)])
    (pair,) = compare_profiles(make_profile(one), make_profile(other))
    rows = {row.name: (row.first_ms, row.second_ms) for row in pair.tables["buckets"]}
    assert rows["file I/O"] == (pytest.approx(1.0), None)
    assert rows["forward"] == (None, pytest.approx(0.5))
    assert rows["total"] == (pytest.approx(1.0), pytest.approx(0.5))


def test_accounts_of_servers_are_compared():
    results = [
        make_profile(make_server(queue_ms=ms), kind="server") for ms in (12.0, 6.0)
    ]
    (pair,) = compare_profiles(*results)
    rows = {row.name: row for row in pair.tables["account"]}
    assert rows["queue"].ratio == pytest.approx(0.5)
    assert rows["total"].first_ms == pytest.approx(19.5)


def test_handlers_pair_by_name():
    first = make_profile(make_handler(), make_handler("naive", 9))
    second = make_profile(make_handler("naive", 9), make_handler("stock", 2))
    (pair,) = compare_profiles(first, second)
    assert (pair.first, pair.second) == ("naive", "naive")


def test_single_handlers_pair_whatever_their_names():
    (pair,) = compare_profiles(make_profile(), make_profile(make_handler("naive", 9)))
    assert (pair.first, pair.second) == ("offpath", "naive")


def test_nothing_to_pair_names_both_sides():
    first = make_profile(make_handler(), make_handler("stock"))
    with pytest.raises(ExpectedError, match="offpath, stock.*naive"):
        compare_profiles(first, make_profile(make_handler("naive")), force=True)


UNLIKE = [
    pytest.param({"kind": "cprofile"}, "kind: 'stages', 'cprofile'", id="kind"),
    pytest.param(
        {"workload": WORKLOAD | {"identity": "cd"}}, "workload.identity", id="images"
    ),
    pytest.param(
        {"settings": SETTINGS | {"batch_size": 4}},
        "settings.batch_size: 8, 4",
        id="batch-size",
    ),
    pytest.param(
        {"settings": SETTINGS | {"model": "resnet50"}}, "settings.model", id="model"
    ),
    pytest.param(
        {"host": HOST | {"cpu": "other"}}, "host.cpu: 'some', 'other'", id="processor"
    ),
    pytest.param({"host": HOST | {"cores": 8}}, "host.cores: 2, 8", id="cores"),
]


@pytest.mark.parametrize(("changes", "named"), UNLIKE)
def test_unlike_profiles_are_refused_and_what_differs_is_named(changes, named):
    with pytest.raises(ExpectedError, match=f"not comparable: {named}.*--force"):
        compare_profiles(make_profile(), make_profile(**changes))


@pytest.mark.parametrize(("changes", "named"), UNLIKE)
def test_unlike_profiles_are_compared_when_told(changes, named):
    assert compare_profiles(make_profile(), make_profile(**changes), force=True)


def test_a_handlers_own_batch_size_counts():
    one, other = (make_handler(settings={"batch_size": size}) for size in (8, 1))
    with pytest.raises(ExpectedError, match="offpath.batch_size: 8, 1"):
        compare_profiles(make_profile(one), make_profile(other))


def test_versions_and_lengths_may_differ_and_are_noted():
    newer = HOST | {"packages": {"torch": "2.15.0"}}
    second = make_profile(host=newer, settings=SETTINGS | {"requests": 400})
    assert compare_profiles(make_profile(), second)
    notes = " ".join(find_notes(make_profile(), second))
    assert "host.packages.torch" in notes and "settings.requests: 800, 400" in notes


def test_what_is_left_over_and_the_total_stand_last():
    other = make_handler(batches=[BatchSample(1, 0.3, {"mine": 0.2})])
    (pair,) = compare_profiles(make_profile(), make_profile(other))
    names = [row.name for row in pair.tables["stages"]]
    assert names == ["decode", "inference", "mine", "other", "total"]


def test_rows_as_data_keep_what_is_missing():
    first, second = make_profile(), make_profile(make_handler("naive", 2))
    data = to_data(compare_profiles(first, second), ["a note"])
    assert data["notes"] == ["a note"]
    (pair,) = data["comparisons"]
    assert pair["stages"][-1]["name"] == "total" and pair["second"] == "naive"
