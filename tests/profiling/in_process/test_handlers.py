"""Which handlers may be profiled, and what is said of those that may not."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.in_process.handlers import choose_handlers
from tests.support.echo_archive import write_mar


def write_manifest(path: Path, model: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        manifest = {"model": {"modelName": "m", **model}}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return path


def test_ours_is_profiled_where_nothing_is_named():
    assert [choice.name for choice in choose_handlers((), ())] == ["offpath"]


def test_a_class_and_an_archive_are_called_by_their_own_names(tmp_path):
    (tmp_path / "mine.py").write_text("")
    mar = write_mar(tmp_path / "store", "echo")
    choices = choose_handlers((f"{tmp_path}/mine.py:Mine", "stock"), (mar,))
    assert [choice.name for choice in choices] == ["Mine", "stock", "echo"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("offpth", "unknown handler 'offpth'; expected offpath", id="typo"),
        pytest.param("gone.py:Mine", "'gone.py' does not exist", id="no-file"),
        pytest.param("mine.py", "FILE.py:CLASS", id="no-class"),
        pytest.param("mine.py:a b", "FILE.py:CLASS", id="no-name-of-a-class"),
    ],
)
def test_an_unknown_handler_is_said(name, said):
    with pytest.raises(ExpectedError, match=said):
        choose_handlers((name,), ())


def test_a_handler_named_twice_is_said():
    with pytest.raises(ExpectedError, match="'stock' is given 2 times"):
        choose_handlers(("stock", "offpath", "stock"), ())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        pytest.param({}, "has no handler in its manifest", id="without-a-handler"),
        pytest.param({"handler": ""}, "has no handler", id="with-an-empty-one"),
        pytest.param(
            {"handler": "gone.py"}, "neither in it nor", id="handler-not-inside"
        ),
    ],
)
def test_an_archive_without_a_handler_is_said(tmp_path, model, said):
    path = write_manifest(tmp_path / "a.mar", model)
    with pytest.raises(ExpectedError, match=said):
        choose_handlers((), (path,))


def test_an_archive_may_name_a_handler_of_torchserves_own(tmp_path):
    path = write_manifest(tmp_path / "a.mar", {"handler": "image_classifier"})
    assert choose_handlers((), (path,))[0].name == "a"


@pytest.mark.parametrize("content", [None, b"no zip"], ids=["missing", "no-zip"])
def test_a_file_that_is_no_archive_is_said(tmp_path, content):
    path = tmp_path / "a.mar"
    if content:
        path.write_bytes(content)
    with pytest.raises(ExpectedError, match="archive"):
        choose_handlers((), (path,))
