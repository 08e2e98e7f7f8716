"""A running worker imports its archive's modules, and none of the working folder or of ours."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from offpath.serving.starting import start_server
from tests.conftest import build
from tests.support.echo_archive import make_settings
from tests.support.eventually import MAX_S
from tests.support.images import jpeg

pytestmark = pytest.mark.server
# The second and the third have the name of a module beside Granian's supervisor, and beside
# TorchServe's fork server.
NAMES = ("grading", "balance", "children")
HANDLER = f"""
import importlib
import sys
from pathlib import Path

from offpath.handler.classifier import OffpathClassifier


class Asked(OffpathClassifier):
    def postprocess_item(self, result):
        return {{
            "path": sys.path,
            "folder": str(Path(__file__).parent),
            "files": [importlib.import_module(name).__file__ for name in {NAMES}],
        }}
"""


@pytest.mark.parametrize("kind", ["granian", pytest.param("torchserve", marks=pytest.mark.slow)])
def test_a_worker_imports_the_archives_modules_wherever_the_server_was_started(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, code, working = (tmp_path / name for name in ("store", "code", "working"))
    for folder in (store, code, working):
        folder.mkdir()
    for name in NAMES:
        (code / f"{name}.py").write_text("")
        (working / f"{name}.py").write_text("")
    (code / "asked.py").write_text(HANDLER)
    files, one = [code / f"{name}.py" for name in NAMES], {"minWorkers": 1, "maxWorkers": 1}
    handler = {"code": code / "asked.py", "extra_files": files}
    archive = build(store, "near-free", "asked", limits=one, **handler)
    monkeypatch.chdir(working)
    with start_server(make_settings(archive, server=kind)) as server:
        url = f"{server.inference_url}/predictions/asked"
        reply = httpx.post(url, content=jpeg(), timeout=MAX_S).json()
    assert not {"", ".", str(working)} & set(reply["path"])
    assert reply["files"] == [f"{reply['folder']}/{name}.py" for name in NAMES]
