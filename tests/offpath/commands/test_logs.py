"""`offpath logs` on a spool and a folder; real processes own the segments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import duckdb
import pytest

from offpath.handler.prediction_log.packing import compress
from offpath.handler.prediction_log.record import FIELDS, Record
from tests.offpath.commands.conftest import Logs, StartWorker, record, write_log
from tests.offpath.conftest import read_json_keys
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[3]


def test_ship_leaves_living_workers_alone_and_takes_what_dead_ones_left(
    logs: Logs, tmp_path: Path, start_worker: StartWorker
) -> None:
    # Of another sink: a living worker of the same one would adopt what the dead one left.
    dead, alive = start_worker("a b c"), start_worker("d", f"file://{tmp_path}/other")
    dead.kill()
    # As a worker leaves one that has answered nothing since its last delivery.
    for segment in list(tmp_path.glob("spool/*/*/*.spool")):
        if segment.parent.name.split("-")[-2] == str(dead.pid):
            segment.with_name(segment.name.replace("-0000", "-0009")).touch()

    done = logs("ship", "--spool", tmp_path / "spool", "--json")

    report = json.loads(done.out)
    assert list(report) == read_json_keys()["logs ship"]
    assert done.code == 0, done.err
    assert (report["shipped_segments"], report["shipped_records"]) == (1, 3)
    assert (report["left_segments"], report["living_segments"]) == (0, 1)
    alive.kill()
    again = logs("ship", "--spool", tmp_path / "spool")
    assert "shipped 1 segments with 1 records; 0 left" in again.out
    assert not any(path.is_dir() for path in tmp_path.glob("spool/*/*"))
    for folder, ids in (("out", ["a", "b", "c"]), ("other", ["d"])):
        lines = logs("read", f"file://{tmp_path}/{folder}", "--json").out.split()
        assert [json.loads(line)["event_id"] for line in lines] == ids


def test_ship_watch_takes_what_dies_while_it_watches_and_ends_at_sigterm(
    tmp_path: Path, start_worker: StartWorker
) -> None:
    worker = start_worker("a")
    options = ["--spool", str(tmp_path / "spool"), "--watch"]
    watcher = subprocess.Popen(
        [sys.executable, "-m", "offpath", "logs", "ship", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker.kill()
    eventually(lambda: list(tmp_path.glob("out/*/*/*")))
    watcher.send_signal(signal.SIGTERM)
    output, _ = watcher.communicate()

    assert watcher.returncode == 0
    assert "shipped 1 segments with 1 records" in output


def test_status_tells_what_waits_and_changes_nothing(
    logs: Logs, tmp_path: Path, start_worker: StartWorker
) -> None:
    begin_s = time.monotonic()
    start_worker("a b").kill()
    start_worker("c", f"file://{tmp_path}/other")
    before = sorted(tmp_path.rglob("spool/*"))

    done = logs("status", "--spool", tmp_path / "spool", "--json")

    shown = json.loads(done.out)
    assert list(shown) == read_json_keys()["logs status"]
    by_uri = {sink["uri"]: sink for sink in shown["sinks"]}
    other, sink = by_uri[f"file://{tmp_path}/other"], by_uri[f"file://{tmp_path}/out"]
    assert (other["living"], other["dead"], other["segments"]) == (1, 0, 1)
    assert (sink["living"], sink["dead"], sink["segments"]) == (0, 1, 1)
    assert sink["spool_bytes"] > 0 and 0 <= sink["oldest_age_s"] <= time.monotonic() - begin_s + 0.1
    assert sink["last_error"] is None
    assert sorted(tmp_path.rglob("spool/*")) == before
    table = logs("status", "--spool", tmp_path / "spool").out
    assert f"spool {tmp_path / 'spool'}" in table and "bytes waiting" in table


@pytest.mark.parametrize(
    ("damaged", "place"),
    [
        pytest.param(b"{", " line 1", id="torn"),
        pytest.param(b"\xff{}", " line 1", id="not-text"),
        pytest.param(b'{"event_id": "a", "inference_time": "soon"}', " line 1", id="no-time"),
        pytest.param(b"[" * 100_000, " line 1", id="nested"),
        pytest.param(slice(-5), "", id="without-end"),
    ],
)
def test_damage_is_named_and_the_rest_is_read(
    logs: Logs, tmp_path: Path, damaged: bytes | slice, place: str
) -> None:
    uri = write_log(tmp_path / "out", [record("a")])
    (path,) = (tmp_path / "out").glob("dt=*/*/*")
    first = path.with_name(f"0{path.name}")
    is_line = isinstance(damaged, bytes)
    first.write_bytes(compress(damaged + b"\n") if is_line else path.read_bytes()[damaged])
    (tmp_path / "ids").write_text("a\n")
    for arguments in (
        ("read", uri),
        ("read", uri, "--json", "--since", "1h"),
        ("verify", uri, "--ids", str(tmp_path / "ids")),
    ):
        done = logs(*arguments)
        assert done.code == 1
        assert f"{first.name}{place}" in done.err and "cannot be read" in done.err
        assert "1 records read" in done.out or '"a"' in done.out or " a " in done.out


def test_verify_lists_what_is_missing_and_what_is_double(logs: Logs, tmp_path: Path) -> None:
    uri = write_log(tmp_path / "out", [record(name) for name in "abc"])
    # Another host, which cannot know what this one has recorded.
    write_log(tmp_path / "out", [record("a")], spool_dir=str(tmp_path / "host-2"))
    answered = [{"request_id": "a", "status": 200}, {"request_id": "x", "status": 200}]
    answered.append({"request_id": "refused", "status": 503})
    ids = tmp_path / "ids.jsonl"
    ids.write_text("".join(json.dumps(row) + "\n" for row in answered))

    done = logs("verify", uri, "--ids", ids, "--json")

    verdict = json.loads(done.out)
    assert list(verdict) == read_json_keys()["logs verify"]
    assert done.code == 1
    assert (verdict["missing"], verdict["double"]) == (["x"], ["a"])
    assert "1 records missing, 1 double" in done.err
    shown = logs("verify", uri, "--ids", ids).out
    assert "missing: x" in shown and "double: a" in shown


def test_read_is_in_order_of_time_and_finds_one_record_or_a_period(
    logs: Logs, tmp_path: Path
) -> None:
    def record_ago(event_id: str, ago_s: float) -> Record:
        when = time.gmtime(time.time() - ago_s)
        return record(event_id, time.strftime("%Y-%m-%dT%H:%M:%SZ", when))

    records = [record_ago(f"e{n}", ago_s) for n, ago_s in enumerate((300, 1800, 1200))]
    uri = write_log(tmp_path / "out", records)
    write_log(tmp_path / "out", [record_ago("first~copy", 2000)])

    def read(*options: str) -> list[str]:
        lines = logs("read", uri, *options, "--json").out.splitlines()
        return [json.loads(line)["event_id"] for line in lines]

    assert read() == ["first~copy", "e1", "e2", "e0"]
    assert read("--since", records[2].inference_time, "--until", "10m") == ["e2"]
    assert read("--id", "e2") == ["e2"] and read("--id", "first~copy") == ["first~copy"]
    table = logs("read", uri).out
    assert table.index("e1") < table.index("e2") < table.index("e0")
    done = logs("read", uri, "--until", "2020-01-01")
    assert done.code == 0 and "no records in this period" in done.out
    done = logs("read", uri, "--id", "e")
    assert done.code == 1 and "no record of 'e'" in done.err


def test_parquet_has_every_field_with_its_type(logs: Logs, tmp_path: Path) -> None:
    fields = {"user_id": "\ud800'", "payload_bytes": 7, "stage_ms": {"decode": 1.5}}
    extra = {"box": [1, 2]}
    late = record(
        "late", "2026-11-21T04:00:00.000Z", **fields, predictions=[("cat", 0.5)], extra=extra
    )
    early = record("early", "2026-11-21T03:00:00.000Z", status=422, error="UndecodableImage")
    uri = write_log(tmp_path / "out", [late, early])
    file = tmp_path / "it's.parquet"

    done = logs("read", uri, "--parquet", file, "--since", "2026-11-21")

    assert done.code == 0 and f"2 records: {file}" in done.out
    table = duckdb.read_parquet(str(file))
    assert set(table.columns) == set(FIELDS)
    rows = [dict(zip(table.columns, row)) for row in table.fetchall()]
    assert [row["event_id"] for row in rows] == ["early", "late"]
    assert rows[0]["error"] == "UndecodableImage" and rows[0]["predictions"] == []
    assert rows[1]["inference_time"] == datetime(2026, 11, 21, 4)
    assert rows[1]["predictions"] == [{"label": "cat", "probability": 0.5}]
    assert (rows[1]["stage_ms"]["decode"], rows[1]["payload_bytes"]) == (1.5, 7)
    assert (rows[1]["user_id"], json.loads(rows[1]["extra"])) == ("\ufffd'", extra)
