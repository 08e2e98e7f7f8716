"""Objects and spools that a stranger has written: nothing ends a command or fills its memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from offpath.handler.prediction_log.packing import compress
from offpath.handler.prediction_log.segment import MAX_OBJECT_BYTES
from offpath.serving.prediction_log.reading import MAX_DAMAGED_LINES
from tests.guarantees import guarantee
from tests.offpath.commands.conftest import Logs, StartWorker, record, write_log
from tests.offpath.conftest import Run
from tests.support.pages import list_requests, read_page

RECORD = b'{"event_id":"x","inference_time":"2026-11-21T03:51:42Z"}'
LONG_LINE = bytes(32 << 20)
MANY_LINES = (RECORD.ljust(1 << 20) + b"\n") * (MAX_OBJECT_BYTES // (1 << 20) + 1)
NO_RECORDS = b"{}\n" * (1 << 17)


@guarantee(
    "Poisoned spools, segments and objects",
    "offpath/commands/logs.py",
    'return printable("  ".join(',
    'return str("  ".join(',
)
def test_surrogates_and_scripts_are_texts_in_every_command(run: Run, tmp_path: Path) -> None:
    script = "<script>alert('\N{SNOWMAN}')</script>"
    bad = f"{script}cat\ud800"
    user_id = f"{bad}\x1b[2J\x9b[red]"
    records = [record(bad, user_id=user_id, predictions=[(bad, 0.5)]) for _ in range(2)]
    uri = write_log(tmp_path / "out", records)
    (tmp_path / "ids").write_text("x\n")

    read = run("logs", "read", uri)
    lines = run("logs", "read", uri, "--json").out.splitlines()
    verify = run("logs", "verify", uri, "--ids", tmp_path / "ids")
    html = tmp_path / "report.html"
    report = run("logs", "report", "--a", uri, "--b", uri, "--html", html)

    assert read.code == 0 and read.out.count(r"cat\ud800 0.500") == 2
    assert "\x1b" not in read.out and "\x9b" not in read.out and "[red]" in read.out
    assert [json.loads(line)["event_id"] for line in lines] == [bad, bad]
    assert verify.code == 1 and rf"double: {script}cat\ud800" in verify.out
    assert report.code == 0 and "cat\ufffd" in report.out and f"page: {html}" in report.out
    assert "\x1b" not in report.out
    page = html.read_text("utf-8")
    assert list_requests(page) == [] and f"{script}cat\ufffd" in "".join(read_page(page).texts)


@guarantee("Poisoned spools, segments and objects")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(LONG_LINE, "a line has more than", id="long"),
        pytest.param(MANY_LINES, "more than 134217728 bytes", id="many"),
        pytest.param(NO_RECORDS, f"{MAX_DAMAGED_LINES} of its", id="no-records"),
    ],
)
def test_bomb_is_named_and_the_rest_is_read(
    run: Run, logs: Logs, tmp_path: Path, content: bytes, why: str
) -> None:
    uri = write_log(tmp_path / "out", [record("a")])
    (path,) = (tmp_path / "out").glob("dt=*/*/*")
    bomb = path.with_name(f"0{path.name}")
    bomb.write_bytes(compress(content))

    tracemalloc.start()
    done = run("logs", "read", uri, "--json")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    listed = f"{MAX_DAMAGED_LINES + 1} objects" if content is NO_RECORDS else bomb.name
    assert done.code == 1 and listed in done.err and '"event_id":"a"' in done.out
    assert peak_bytes < (16 << 20) + bomb.stat().st_size
    assert why in done.err or content is NO_RECORDS
    report = run("logs", "report", "--a", uri, "--b", uri, "--json")
    assert report.err == done.err
    assert json.loads(report.out)["figures"]["requests_a"] == 1


@guarantee("Poisoned spools, segments and objects")
def test_objects_that_are_no_files_are_named_and_the_rest_is_read(run: Run, tmp_path: Path) -> None:
    uri = write_log(tmp_path / "out", [record("a")])
    (path,) = (tmp_path / "out").glob("dt=*/*/*")
    os.mkfifo(path.with_name(f"0{path.name}"))
    path.with_name(f"1{path.name}").symlink_to("/dev/zero")

    done = run("logs", "read", uri, "--json")

    assert done.code == 1 and '"event_id":"a"' in done.out
    assert done.err.count("not a regular file") == 2


@guarantee("Poisoned spools, segments and objects")
def test_segment_that_is_too_large_is_set_aside_and_the_rest_is_shipped(
    logs: Logs, tmp_path: Path, start_worker: StartWorker
) -> None:
    start_worker("a").kill()
    (segment,) = tmp_path.glob("spool/*/*/*.spool")
    huge = segment.with_name(segment.name.replace("-0000", "-0009"))
    huge.touch()
    os.truncate(huge, MAX_OBJECT_BYTES + 1)

    done = logs("ship", "--spool", tmp_path / "spool", "--json")

    assert done.code == 0, done.err
    assert json.loads(done.out)["shipped_records"] == 1
    (aside,) = tmp_path.glob("spool/*/*.aside")
    assert aside.stat().st_size > MAX_OBJECT_BYTES


def test_poisoned_notes_of_a_spool_reach_no_terminal(
    logs: Logs, tmp_path: Path, start_worker: StartWorker
) -> None:
    start_worker("a").kill()
    (sink,) = tmp_path.glob("spool/*")
    (sink / "sink.json").write_text(json.dumps({"uri": "s3://b/\ud800\x1b[2J"}))
    (sink / "last-error.json").write_text(json.dumps({"message": "\ud800\x1b[2J"}))
    for options in (("status",), ("ship", "--timeout-s=0")):
        done = logs(*options, "--spool", tmp_path / "spool")
        assert done.code < 2 and "\x1b" not in done.out + done.err
