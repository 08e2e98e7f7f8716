"""Handlers that can be profiled, and messages for those that cannot."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.profilers.handlers import choose_handlers
from tests.support.echo_archive import write_mar


def write_manifest(folder: Path, model: dict[str, str]) -> Path:
    path = folder / "a.mar"
    with zipfile.ZipFile(path, "w") as archive:
        manifest = {"model": {"modelName": "m", **model}}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return path


def test_a_class_and_an_archive_are_called_by_their_own_names(tmp_path):
    (tmp_path / "mine.py").write_text("")
    # The handler of the second is one of TorchServe's own.
    mars = (
        write_mar(tmp_path / "store", "echo"),
        write_manifest(tmp_path, {"handler": "image_classifier"}),
    )
    choices = choose_handlers((f"{tmp_path}/mine.py:Mine", "stock"), mars[:1])
    assert [choice.name for choice in choices] == ["Mine", "stock", "echo"]
    assert [choice.name for choice in choose_handlers((), mars)] == ["echo", "a"]
    with pytest.raises(ExpectedError, match="'stock' runs the model of .* one archive, found 2"):
        choose_handlers(("stock",), mars)
    # Our handler is the default.
    assert [choice.name for choice in choose_handlers((), ())] == ["offpath"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        pytest.param({}, "has no handler in its manifest", id="without-a-handler"),
        pytest.param({"handler": ""}, "has no handler", id="with-an-empty-one"),
        pytest.param({"handler": "gone.py"}, "neither in it nor", id="not-inside"),
    ],
)
def test_an_archive_without_a_handler_is_refused(tmp_path, model, said):
    with pytest.raises(ExpectedError, match=said):
        choose_handlers((), (write_manifest(tmp_path, model),))
