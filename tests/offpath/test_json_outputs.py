"""`--json` of every command: valid JSON with the keys of the table in docs/reference.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.cli import main
from offpath.commands.serve_view import ServeView
from scripts.command_list import list_commands
from tests.archive.conftest import THREE_CLASSES
from tests.offpath.conftest import Run
from tests.profiling.runs import make_compare
from tests.support.answering_server import answering_server
from tests.support.images import jpeg
from tests.support.prediction_logs import record, write_log

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
ROW = re.compile(r"^\| `--json` of (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
RECORD = {"event_id": "a", "inference_time": "2026-01-01T00:00:00Z"}
ARCHIVE = "archive --model tiny.py --weights tiny.pt --engine eager --output store --json"
# None: tested in another way. `logs read` prints records, which test_record.py checks;
# test_splits.py runs `canary`.
RUNS = {
    "archive": ARCHIVE,
    "check": "check store/classifier.mar --json",
    "logs report": "logs report --a file://{folder}/log --b since=1h --json",
    "logs ship": "logs ship --spool {folder}/spool --json",
    "logs status": "logs status --spool {folder}/spool --json",
    "logs verify": "logs verify file://{folder}/log --ids ids.txt --json",
    "predict": "predict photo.jpg --url {url} --json",
    "serve": None,
    "canary": None,
    "bench compare": None,
}


def read_table() -> dict[str, list[str]]:
    """Returns the documented keys by command."""
    return {
        command: re.findall(r"`(\w+)`", keys)
        for commands, _, keys in ROW.findall(REFERENCE.read_text("utf-8"))
        for command in re.findall(r"`([a-z ]+)`", commands)
    }


def test_every_json_output_is_documented() -> None:
    with_json = {
        path.removeprefix("offpath ")
        for path, command, _ in list_commands(main, "offpath")
        if any("--json" in option.opts for option in command.params)
    }
    assert set(read_table()) == with_json
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


@pytest.mark.parametrize("name", [name for name, line in RUNS.items() if line])
def test_output_is_json_with_the_documented_keys(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    if not (folder / "log").exists():
        write_log(folder / "log", [record("a")])
    if name == "check" and not (folder / "store").exists():
        run(*ARCHIVE.split())
    with answering_server() as server:
        line = str(RUNS[name]).format(folder=folder, url=server.url)
        done = run(*line.split())
    assert done.code == (0 if name != "check" else done.code), done.err
    assert keys_of(done.out) == read_table()[name]


def test_a_saved_run_has_the_documented_keys(tmp_path: Path) -> None:
    make_compare().save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text("utf-8")
    assert keys_of(text) == read_table()["bench compare"]


def test_the_ready_event_has_the_documented_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    urls = dict.fromkeys(("inference", "management", "metrics"), "x")
    ServeView(as_json=True).show_ready(urls, [], 1.0)
    assert keys_of(capsys.readouterr().out) == read_table()["serve"]
