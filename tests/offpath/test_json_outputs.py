"""`--json` of every command: valid JSON with the keys of the table in docs/reference.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive import build
from offpath.cli import main
from scripts.command_list import list_commands
from tests.archive.conftest import THREE_CLASSES
from tests.offpath.conftest import Run, read_json_keys
from tests.support.answering_server import answering_server
from tests.support.images import jpeg
from tests.support.prediction_logs import record, write_log

ARCHIVE = "archive --model tiny.py --weights tiny.pt --engine eager --output store --json"
# `logs read` prints records, which test_batch_records.py checks. Commands that need a server or a
# load are held to the table by their own tests: test_serve.py, test_profile.py and test_splits.py.
RUNS = {
    "archive": ARCHIVE,
    "check": "check store/classifier.mar --json",
    "logs report": "logs report --a file://{folder}/log --b since=1h --json",
    "logs ship": "logs ship --spool {folder}/spool --json",
    "logs status": "logs status --spool {folder}/spool --json",
    "logs verify": "logs verify file://{folder}/log --ids ids.txt --json",
    "predict": "predict photo.jpg --url {url} --json",
}


def test_every_json_output_is_documented() -> None:
    with_json = {
        path.removeprefix("offpath ")
        for path, command, _ in list_commands(main, "offpath")
        if any("--json" in option.opts for option in command.params)
    }
    assert set(read_json_keys()) == with_json
    assert set(RUNS) < with_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json")
    (path / "tiny.py").write_text(THREE_CLASSES)
    weights = {"head.weight": torch.eye(3), "head.bias": torch.zeros(3)}
    torch.save(weights, path / "tiny.pt")
    (path / "photo.jpg").write_bytes(jpeg(size=(64, 64)))
    (path / "ids.txt").write_text("a\n")
    (path / "spool").mkdir()
    return path


def keys_of(output: str) -> list[str]:
    """Returns the keys of a document, or those that all objects of a list or of lines share."""
    try:
        content: Any = json.loads(output)
    except ValueError:
        content = [json.loads(line) for line in output.splitlines()]
    if not isinstance(content, list):
        return list(content)
    assert content and all(list(one) == list(content[0]) for one in content)
    return list(content[0])


@pytest.mark.parametrize("name", RUNS)
def test_output_is_json_with_the_documented_keys(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(build, "check_loads_alone", lambda *_: None)  # seconds of torch's import
    if not (folder / "log").exists():
        write_log(folder / "log", [record("a")])
    if name == "check" and not (folder / "store").exists():
        run(*ARCHIVE.split())
    with answering_server() as server:
        line = RUNS[name].format(folder=folder, url=server.url)
        done = run(*line.split())
    assert done.code == (0 if name != "check" else done.code), done.err
    assert keys_of(done.out) == read_json_keys()[name]
