"""Output of all commands fits 80 columns, and no cell is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.commands.serve_view import ServeView
from offpath.handler.prediction_log.record import Record
from offpath.handler.prediction_log.sink_file import write_last_error
from offpath.handler.stages import Stage
from offpath.serving.client import Prediction
from offpath.serving.server.management import ModelStatus
from tests.offpath.conftest import Run
from tests.support.answering_server import answering_server
from tests.support.images import jpeg
from tests.support.prediction_logs import write_log

LABEL = "tabby cat, or another animal with a name that goes on and on " * 2


def test_answers_are_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    photograph = tmp_path / ("a-photograph-with-a-long-name-" * 3 + ".jpg")
    photograph.write_bytes(jpeg(size=(64, 64)))
    with answering_server() as answers:
        answers.body = json.dumps({LABEL: 0.75}).encode()
        answers.headers = {"Server-Timing": "read;dur=1, decode;dur=11.5, log;dur=2"}
        shown = assert_whole(run, monkeypatch, "predict", photograph, "--url", answers.url)
    assert "0.750" in shown and "11.5" in shown


def test_a_sinks_state_is_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "spool" / "sink"
    folder.mkdir(parents=True)
    uri = f"file:///{'a-long-folder/' * 8}"
    (folder / "sink.json").write_text(json.dumps({"uri": uri}))
    message = f"no answer from http://127.0.0.1:9/{'dt%3D2026' * 20}: check the bucket"
    write_last_error(folder, "timeout", message)
    monkeypatch.chdir(tmp_path)
    shown = assert_whole(run, monkeypatch, "logs", "status", "--spool", "spool")
    assert "bucket" in shown  # its end


def test_a_report_is_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = "0b0c1d2e-1111-4222-8333-444455556666"
    when = "2026-11-22T00:00:00.000Z"
    uri = write_log(
        tmp_path / "log",
        [
            Record(one, when, "m", "1", predictions=[(LABEL, 0.9)], payload_bytes=10**9),
            Record(one, when, "m", "2", status=422, error="UndecodableImage"),
        ],
    )
    sets = ("--a", f"{uri},version=1", "--b", "version=2")
    shown = assert_whole(run, monkeypatch, "logs", "report", *sets)
    assert one in shown and "1,000,000,000" in shown and "UndecodableImage" in shown
    # Folded, perhaps, but whole.
    read = "".join(assert_whole(run, monkeypatch, "logs", "read", uri).split())
    assert read.count(one) == 2 and "0.900" in read and LABEL.replace(" ", "") in read


def test_a_start_is_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    # The widest of each: an engine's name, a range of workers, time-outs of minutes.
    described = {"device": "NVIDIA A100-SXM4-80GB", "engine": "onnxruntime"}
    status = ModelStatus(
        *("scratches-of-the-left-door", "2026.11.22", "defects.mar", 2, 16, 128),
        *(10_000, 3600, 3600, ("READY",) * 2, (7, 8)),
        described={**described, "precision": "bf16", "parity": {"images": 16}},
    )
    view = ServeView()
    view.show_ready({"inference": "http://127.0.0.1:8080"}, [status], 21.4)
    stages = {stage.value: 1234.5 for stage in Stage}
    prediction = Prediction(200, [("espresso", 0.954)], server_timing=stages)
    view.show_prediction(Path("espresso.jpg"), prediction)
    shown = capsys.readouterr().out
    assert_fits(shown)
    for whole in ("2-16", "128", "10000 ms", "3600, 3600 s", "log 1234.5"):
        assert whole in shown


def assert_whole(run: Run, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*arguments)
    assert done.code == 0, done.err
    assert_fits(done.out)
    return done.out


def assert_fits(shown: str) -> None:
    lines = [line for line in shown.splitlines() if "://" not in line]
    assert "…" not in shown and max(map(len, lines)) <= 80
