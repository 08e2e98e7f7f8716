from __future__ import annotations

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.profile_compare import (
    compare_parts,
    document_of,
    join_profiles,
)
from offpath.profiling.profilers.profile_figures import ACCOUNT, BUCKET, STAGE
from offpath.profiling.profilers.samples import BatchSample
from tests.profiling.profilers.profiles import (
    HOST,
    IMAGES,
    SETTINGS,
    add_handler,
    make_batches,
    make_function,
    make_run,
    make_server,
)


def make_profile(name: str = "offpath", factor: float = 1, **changes) -> Run:
    return add_handler(make_run(**changes), name, make_batches(factor))


def join(first: Run, second: Run, force: bool = False) -> Run:
    return join_profiles(first, second, "offpath profile compare a b", force)


def compare(first: Run, second: Run, kind: str = STAGE) -> dict:
    run = join(first, second)
    (pair,) = run.details["pairs"]
    return {name: sides for name, *sides in compare_parts(Summary(run), pair, kind)}


def test_stages_are_compared_an_image_with_the_ratio_of_the_second_to_the_first():
    sides = make_profile(), make_profile(factor=2)
    rows = compare(*sides)
    assert list(rows) == ["decode", "inference", "other", "total"]
    assert rows["decode"] == pytest.approx([12.5 / 8, 25 / 8])
    assert rows["total"] == pytest.approx([18.5 / 8, 36 / 8])
    (section,) = document_of(join(*sides)).sections
    chart, table = section.parts
    assert [bar.label for bar in chart.bars] == ["A offpath", "B offpath"]
    assert table.columns == ["", "A offpath", "B offpath", "B / A"]
    assert table.rows[0] == ["decode", "1.56", "3.12", "2.00 x"]
    assert table.rows[-1][0] == "total" and table.has_total


def test_kinds_of_work_are_compared_where_one_lacks_some():
    sides = [
        add_handler(make_run("cprofile"), functions=[make_function("f", kind, own_s)])
        for kind, own_s in (("file I/O", 0.8), ("forward", 0.4))
    ]
    rows = compare(*sides, BUCKET)
    assert rows["file I/O"] == [1.0, None]
    assert rows["forward"] == [None, 0.5]
    assert rows["total"] == [1.0, 0.5]
    table = document_of(join(*sides)).sections[-1].parts[-1]
    assert table.rows[0] == ["file I/O", "1.00", "", ""]


def test_accounts_of_servers_are_compared():
    rows = compare(make_server(12.0), make_server(6.0), ACCOUNT)
    assert rows["queue"] == [12.0, 6.0]
    assert rows["total"] == pytest.approx([19.5, 13.5])


def test_handlers_pair_by_name_and_single_ones_whatever_their_names():
    first = add_handler(make_profile(), "naive", make_batches(9))
    second = add_handler(make_profile("naive", 9), "stock", make_batches(2))
    assert join(first, second).details["pairs"] == [("A naive", "B naive")]
    run = join(make_profile(), make_profile("naive", 9))
    assert run.details["pairs"] == [("A offpath", "B naive")]
    assert list(run.variants) == ["A offpath", "B naive"]


def test_nothing_to_pair_names_both_sides():
    first = add_handler(make_profile(), "stock")
    with pytest.raises(ExpectedError, match="offpath, stock.*naive"):
        join(first, make_profile("naive"), force=True)


UNLIKE = [
    ({"experiment": "profile-lines"}, "experiment: "),
    ({"workloads": {"photos": IMAGES | {"identity": "cd"}}}, "images: "),
    ({"settings": SETTINGS | {"batch_size": 4}}, "settings.batch_size: 8, 4"),
    ({"settings": SETTINGS | {"model": "resnet50"}}, "settings.model"),
    ({"host": HOST | {"cpu": "other"}}, "host.cpu: 'some', 'other'"),
    ({"host": HOST | {"cores": 8}}, "host.cores: 2, 8"),
]


@pytest.mark.parametrize(("changes", "named"), UNLIKE)
def test_unlike_profiles_are_refused_unless_told_and_what_differs_is_named(
    changes, named
):
    other = make_profile(**changes)
    with pytest.raises(ExpectedError, match=f"not comparable: {named}.*--force"):
        join(make_profile(), other)
    document = document_of(join(make_profile(), other, force=True))
    assert any(named in warning for warning in document.warnings)


def test_a_handlers_own_batch_size_counts():
    single = [BatchSample(1, batch.total_s) for batch in make_batches()]
    other = add_handler(make_run(), batches=single, size=1)
    with pytest.raises(ExpectedError, match=r"batch size: \[8\], \[1\]"):
        join(make_profile(), other)


def test_folders_versions_and_lengths_may_differ_and_are_noted():
    newer = HOST | {"packages": {"torch": "2.15.0"}}
    fewer = SETTINGS | {"requests": 400}
    other = make_profile(host=newer, settings=fewer, workloads={"elsewhere": IMAGES})
    notes = " ".join(join(make_profile(), other).warnings)
    assert "host.packages.torch" in notes and "settings.requests: 800, 400" in notes


def test_what_is_left_over_and_the_total_stand_last():
    batches = [BatchSample(8, 0.3, {"mine": 0.2})]
    rows = compare(make_profile(), add_handler(make_run(), batches=batches))
    assert list(rows) == ["decode", "inference", "mine", "other", "total"]
