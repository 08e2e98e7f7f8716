from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from offpath.archive.mar_file import read_archives
from offpath.errors import ExpectedError
from offpath.serving.server.model_store import find_models
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


@pytest.mark.parametrize(
    ("folder", "wanted", "found"),
    [
        pytest.param("store", [], ["one.mar", "two.mar"], id="all-of-the-store"),
        pytest.param("store", ["two", "x=one.mar"], ["two.mar", "x=one.mar"], id="names"),
        pytest.param("none", ["{store}"], ["one.mar", "two.mar"], id="a-folder-is-a-store"),
        pytest.param("none", ["x={store}/one.mar"], ["x=one.mar"], id="a-path-needs-no-store"),
    ],
)
def test_archives_are_found(
    store: Path, links: Path, folder: str, wanted: list[str], found: list[str]
) -> None:
    named = [one.format(store=store) for one in wanted]
    assert find_models(store.with_name(folder), named, links) == (store, tuple(found))


def test_unpacked_archives_are_archives(store: Path, links: Path, tmp_path: Path) -> None:
    for path in (store / "three", tmp_path / "other" / "three"):
        with zipfile.ZipFile(store / "one.mar") as archive:
            archive.extractall(path)
    assert find_models(store, (), links) == (store, ("one.mar", "three", "two.mar"))
    assert find_models(store, ("x=three",), links) == (store, ("x=three",))
    path = str(tmp_path / "other" / "three")
    assert find_models(store, (path,), links) == (tmp_path / "other", ("three",))
    assert find_models(store, ("three", f"x={path}"), links) == (links, ("three", "x=three-2"))
    assert [name for name, _ in read_archives(links, ("three", "x=three-2"))] == ["one", "x"]


def test_archives_of_several_folders_are_linked_into_one(
    store: Path, links: Path, tmp_path: Path
) -> None:
    other = write_mar(tmp_path / "other", "three")
    for _ in range(2):  # a reload asks again
        found = find_models(store, ("one", f"x={other}"), links)
    assert found == (links, ("one.mar", "x=three.mar"))
    assert (links / "three.mar").resolve() == other.resolve()


def test_equal_file_names_of_different_folders_are_two_versions_of_a_model(
    store: Path, links: Path, tmp_path: Path
) -> None:
    others = [write_mar(tmp_path / name, "one", version=name) for name in ("2.0", "3.0")]
    wanted = ("one", *map(str, others), str(others[0]))
    for _ in range(2):  # a reload asks again
        folder, found = find_models(store, wanted, links)
    assert found == ("one.mar", "one-2.mar", "one-3.mar", "one-2.mar")
    archives = read_archives(folder, found[:3])
    assert [archive.model_version for _, archive in archives] == ["1.0", "2.0", "3.0"]
    with pytest.raises(ExpectedError, match="two archives hold one 2.0"):
        read_archives(folder, found)
