"""The example of docs/your-handler.md in a real server, and a batch that it breaks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.custom_handler import load_custom_handler
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import load_model_source
from offpath.serving.log_tools.reading import Period, open_store_at, read_records
from offpath.serving.torchserve.server import TorchServe
from tests.support.eventually import eventually
from tests.support.images import jpeg

pytestmark = pytest.mark.server
GUIDE = Path(__file__).parents[2] / "docs" / "your-handler.md"
BREAKS = '\n        if result.headers.get("x-line") == "broken":\n            raise KeyError("x")'


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def url(
    server: TorchServe, log_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Serves the guide's handler with the near-free model in the session's server."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    file = tmp_path_factory.mktemp("own") / "my_handler.py"
    first = "        best = result.predictions[0]"
    assert first in code
    file.write_text(code.replace(first, first + BREAKS))
    source = load_model_source("near-free", None)
    log = {"uri": f"file://{log_folder}", "segment_max_age_s": 0.5}
    own = {"own": {"reject_above": 0.0}, "prediction_log": log}
    config = make_model_config(
        load_preset("cpu"), {"maxBatchDelay": 1000}, {**source.handler, **own}
    )
    spec = ArchiveSpec("own", "1.0", source, source.labels, "labels", config)
    spec = dataclasses.replace(spec, handler=load_custom_handler(str(file)))
    build_archive(spec, server.settings.model_store, force=True)
    with server.management() as management:
        management.register("own.mar", initial_workers=1)
        yield f"{server.inference_url}/predictions/own"
        management.unregister("own")


def test_a_broken_answer_fails_its_item_and_neither_batch_nor_log(
    url: str, log_folder: Path, server: TorchServe
) -> None:
    def send(line: str) -> httpx.Response:
        return httpx.post(url, content=jpeg(), headers={"X-Line": line}, timeout=30)

    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(send, ["7", "broken", "8", "broken"]))
    assert [reply.status_code for reply in replies] == [200, 500, 200, 500]
    answer = replies[0].json()
    assert (answer["verdict"], answer["line"]) == ("reject", "7")
    assert set(answer) == {"verdict", "defect", "line"}
    assert replies[1].json()["type"] == "PostprocessFailed"
    line = "Defects.postprocess_item: KeyError in my_handler.py"
    eventually(lambda: line in server.log_path.read_text())
    ids = [reply.headers["x-request-id"] for reply in replies]
    eventually(lambda: set(ids) <= set(read_log(log_folder)))
    good, bad = (read_log(log_folder)[one] for one in ids[:2])
    assert good["extra"] == {"verdict": "reject"} and good["batch_size"] > 1
    assert bad["error"] == "PostprocessFailed" and "extra" not in bad


def read_log(folder: Path) -> dict[str, dict]:
    """Returns the records by their ids."""
    store = open_store_at(f"file://{folder}")
    return {record["event_id"]: record for record in read_records(store, Period())}
