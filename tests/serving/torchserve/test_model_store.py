from __future__ import annotations

from pathlib import Path

import pytest

from offpath.handler.errors import ExpectedError
from offpath.serving.torchserve.model_store import find_models
from tests.support.echo_archive import write_mar


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_mar(tmp_path / "store", name)
    return tmp_path / "store"


@pytest.fixture
def links(tmp_path: Path) -> Path:
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def test_no_name_means_all_of_the_store(store: Path, links: Path) -> None:
    assert find_models(store, (), links) == (store, ("one.mar", "two.mar"))


def test_names_are_looked_up_in_the_store(store: Path, links: Path) -> None:
    found = find_models(store, ("two", "x=one.mar"), links)
    assert found == (store, ("two.mar", "x=one.mar"))


def test_a_folder_is_a_store(store: Path, links: Path, tmp_path: Path) -> None:
    found = find_models(tmp_path / "none", (str(store),), links)
    assert found == (store, ("one.mar", "two.mar"))


def test_a_path_needs_no_store(store: Path, links: Path, tmp_path: Path) -> None:
    named = (f"x={store}/one.mar",)
    assert find_models(tmp_path / "none", named, links) == (store, ("x=one.mar",))


def test_archives_of_several_folders_are_linked_into_one(
    store: Path, links: Path, tmp_path: Path
) -> None:
    other = write_mar(tmp_path / "other", "three")
    for _ in range(2):  # a reload asks again
        found = find_models(store, ("one", f"x={other}"), links)
    assert found == (links, ("one.mar", "x=three.mar"))
    assert (links / "three.mar").resolve() == other.resolve()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["nope"], "no 'nope.mar' in .*it has one.mar, two.mar"),
        (["other/nope.mar"], "no archive at other/nope.mar"),
        (["{store}", "one"], "is a folder; name one folder"),
        (
            ["{store}/one.mar", "{other}/one.mar"],
            "two archives have the file name one.mar",
        ),
        (["{empty}"], "no .mar file in"),
    ],
)
def test_missing_and_ambiguous_archives_are_named(
    store: Path, links: Path, tmp_path: Path, wanted: list[str], message: str
) -> None:
    write_mar(tmp_path / "other", "one")
    (tmp_path / "empty").mkdir()
    names = {name: tmp_path / name for name in ("store", "other", "empty")}
    with pytest.raises(ExpectedError, match=message):
        find_models(store, [one.format(**names) for one in wanted], links)
