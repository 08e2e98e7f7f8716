"""`offpath batch` as a user runs it: the answers, what is left out, and where a run continues."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from PIL import Image

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.image import SUFFIXES
from offpath.handler.image.formats import FORMATS
from offpath.handler.prediction_log.log_settings import S3Options
from offpath.serving.offline.manifest import (
    IMAGE_LIST,
    count_results,
    find_manifest,
    list_images,
    read_list,
)
from offpath.serving.offline.part_runner import make_row
from offpath.serving.storage import Storage, read_s3_options
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.guarantees import guarantee
from tests.support.images import accepted, jpeg, rejected

FILES = Storage(S3Options())
WANTED = {"input": "in", "archive": "0" * 64}
STORED = {**WANTED, "part_size": 16, "images": ["in/a.jpg"]}


def batch(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offpath", "batch", *map(str, arguments), "--json"]
    return subprocess.run(command, capture_output=True, text=True)


def read_rows(folder: Path) -> dict[str, dict]:
    lines = [line for path in sorted(folder.glob("part-*.jsonl")) for line in path.open("rb")]
    rows = {row["input"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(lines)
    return rows


class Run(NamedTuple):
    """A run over good, bad and unreadable names."""

    bodies: dict[str, bytes]
    unreadable: list[str]
    place: tuple[Path, Path, Path]
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def first(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("offline")
    images = accepted() | {name: body for name, (body, _, _) in rejected().items()}
    bodies = {f"{folder}/{name}.jpg": body for name, body in images.items()}
    for name, body in bodies.items():
        Path(name).write_bytes(body)
    os.mkfifo(folder / "fifo.jpg")
    (folder / "device.jpg").symlink_to("/dev/zero")
    (folder / "huge.jpg").touch()
    os.truncate(folder / "huge.jpg", 1 << 40)
    unreadable = [f"{folder}/{name}.jpg" for name in ("gone", "fifo", "device", "huge", "no\0path")]
    unreadable += ["s3://", "s3://bucket/", "s3://no bucket/a.jpg"]
    names = [*bodies, *unreadable]
    (folder / "list.txt").write_text("\n".join([*names, names[0]]) + "\n\n")
    place = (model_store / "near-free.mar", folder / "list.txt", folder / "out")
    most = len(rejected()) + len(unreadable)
    return Run(bodies, unreadable, place, batch(*place, "--max-errors", most))


@pytest.mark.server
def test_rows_are_the_servers_answers_and_a_missing_part_is_made_again(
    model_store: Path, server: TorchServe, first: Run
) -> None:
    output = first.place[2]
    assert first.done.returncode == 0, first.done.stderr
    rows = read_rows(output)
    assert [*rows] == [*first.bodies, *first.unreadable]
    url = f"{server.inference_url}/predictions/near-free"
    for name, body in first.bodies.items():
        row, reply = rows[name], httpx.post(url, content=body)
        assert row["status"] == reply.status_code, name
        if reply.status_code == 200:
            assert list(row["answer"]) == list(reply.json()), name
            assert row["answer"] == pytest.approx(reply.json(), abs=1e-6)
            assert row["label"] == next(iter(row["answer"]))
            assert row["score"] == row["answer"][row["label"]]
        else:
            assert row["answer"] == reply.json()
            assert row["error"] == reply.json()["type"]
    summary, failed = json.loads(first.done.stdout), len(rejected()) + len(first.unreadable)
    assert summary["images"] == len(rows) and summary["resumed"] == 0
    assert summary["failed"] == sum(summary["errors"].values()) == failed

    part = output / "part-00001.jsonl"
    content = part.read_bytes()
    part.unlink()
    again = batch(*first.place, "--workers", 1)
    assert again.returncode == 1
    assert f"{failed} of {len(rows)} images have no answer" in again.stderr
    assert part.read_bytes() == content
    assert json.loads(again.stdout)["resumed"] == len(rows) - content.count(b"\n")
    other = batch(model_store / "classifier.mar", *first.place[1:])
    assert other.returncode == 2 and "begun with another archive" in other.stderr


@guarantee("Hostile input of a batch run")
@pytest.mark.server
def test_names_that_hold_no_image_cost_their_own_row(first: Run) -> None:
    rows = read_rows(first.place[2])
    assert [rows[name]["error"] for name in first.unreadable] == ["Unreadable"] * 8
    assert 200 in [rows[name]["status"] for name in first.bodies]


def test_images_are_chosen_by_their_suffix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.JPG", "c.jfif", "in/a.png", "notes.txt", "notes2.txt", "no-suffix"):
        (tmp_path / name).write_bytes(jpeg())
    place = str(tmp_path)
    names = [f"{place}/{name}" for name in ("b.JPG", "c.jfif", "in/a.png")]
    assert list_images(FILES, place) == names
    assert "3 files are no images, by their suffixes: .txt, none" in caplog.text
    (tmp_path / "in").chmod(0)
    for name in names:
        Path(name).unlink()
    with pytest.raises(WrongOption, match="pass a text file with the names"):
        list_images(FILES, place)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_list_with_a_byte_order_mark_has_the_same_images(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "list.txt").write_text("/a/ä.jpg\r\n/b.jpg\n", encoding)
    assert read_list(tmp_path / "list.txt") == ["/a/ä.jpg", "/b.jpg"]


def test_every_suffix_that_pillow_has_for_our_formats_is_an_images() -> None:
    Image.init()
    kinds = {*FORMATS, "MPO"}
    assert SUFFIXES == {end for end, kind in Image.registered_extensions().items() if kind in kinds}


@guarantee(
    "Hostile input of a batch run",
    "serving/offline/manifest.py",
    "is_list = type(names) is list and {*map(type, names)} == {str}",
    "is_list = True",
)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"none", id="no-gzip"),
        pytest.param(gzip.compress(bytes(99))[:-9], id="cut-off"),
        pytest.param(gzip.compress(b"[" * 100_000), id="deep"),
        pytest.param(gzip.compress(bytes(8 << 20)) * 50, id="bomb"),
        *(
            pytest.param(gzip.compress(json.dumps(stored).encode()), id=name)
            for name, stored in {
                "list": [],
                "key-missing": WANTED,
                "key-unknown": {**STORED, "\x1b[2J": 1},
                "size-zero": {**STORED, "part_size": 0},
                "images-numbers": {**STORED, "images": [1]},
                "images-none": {**STORED, "images": []},
                "images-twice": {**STORED, "images": ["in/a.jpg"] * 2},
            }.items()
        ),
    ],
)
def test_a_manifest_that_no_run_wrote_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / IMAGE_LIST).write_bytes(content)
    tracemalloc.start()
    with pytest.raises(WrongOption, match="did not write .*; choose another OUTPUT"):
        find_manifest(FILES, str(tmp_path), WANTED, 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 300 << 20


@guarantee("Hostile input of a batch run")
@pytest.mark.parametrize("content", [b"{\n", b"{}\n", b"[]\n"])
def test_a_damaged_part_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "part-00000.jsonl").write_bytes(content)
    with pytest.raises(ExpectedError, match="part-00000.jsonl is damaged; delete it"):
        count_results(FILES, str(tmp_path), ["part-00000.jsonl"])


def test_a_folder_has_one_run_at_a_time(tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    with FILES.hold(place):
        with pytest.raises(ExpectedError, match="another `offpath batch` is writing"):
            with Storage(S3Options()).hold(place):
                pass
    with FILES.hold(place):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_the_variables_of_aws_name_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    assert read_s3_options() == S3Options("eu-west-1", "http://all")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    assert read_s3_options() == S3Options("eu-west-1", "http://s3")


@pytest.mark.parametrize(
    "body, label",
    [
        pytest.param(b'{"b":0.5,"a":0.25}', ("b", 0.5), id="predictions"),
        pytest.param(b"{}", (None, None), id="nothing-reaches-the-threshold"),
        pytest.param(b'{"boxes":[1]}', (None, None), id="custom-object"),
    ],
)
def test_a_row_has_the_best_label_where_the_answer_has_one(body: bytes, label: tuple) -> None:
    row = json.loads(make_row("a", 200, body))
    assert (row["label"], row["score"], row["answer"]) == (*label, json.loads(body))
