"""What the commands print fits 80 columns, and no cell is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.offpath.conftest import Run
from tests.support.answering_server import answering_server
from tests.support.pictures import jpeg

RESULTS = Path(__file__).parents[2] / "profiling" / "results"
COST = ("--peak-per-s", "500", "--instance", "c7i.large", "--workload", "photos-55k")
LABEL = "tabby cat, or another animal with a name that goes on and on " * 2


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["cost", "--example", "published"], id="cost"),
        pytest.param(
            ["cost", "--result", str(RESULTS / "compare-turns-55k.json"), *COST],
            id="cost-of-a-run",
        ),
        pytest.param(["profile", "show", "profile-stages.json"], id="profile"),
        pytest.param(["bench", "show", "compare-front-55k.json"], id="compare"),
        pytest.param(["bench", "show", "engines.json"], id="engines"),
        pytest.param(["bench", "show", "tradeoff.json"], id="sweep"),
        pytest.param(["bench", "show", "tune-55k.json"], id="tune"),
    ],
)
def test_reports_are_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(RESULTS)
    assert_whole(run, monkeypatch, *arguments)


def test_answers_are_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    photograph = tmp_path / ("a-photograph-with-a-long-name-" * 3 + ".jpg")
    photograph.write_bytes(jpeg(size=(64, 64)))
    with answering_server() as answers:
        answers.body = json.dumps({LABEL: 0.75}).encode()
        answers.headers = {"Server-Timing": "read;dur=1, decode;dur=11.5, log;dur=2"}
        shown = assert_whole(
            run, monkeypatch, "predict", photograph, "--url", answers.url
        )
    assert "0.750" in shown and "11.5" in shown


def test_a_sinks_state_is_whole_at_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "spool" / "sink"
    folder.mkdir(parents=True)
    uri = f"file:///{'a-long-folder/' * 8}"
    (folder / "sink.json").write_text(json.dumps({"uri": uri}))
    assert_whole(run, monkeypatch, "logs", "status", "--spool", tmp_path / "spool")


def assert_whole(run: Run, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*arguments)
    assert done.code == 0, done.err
    tables = [line for line in done.out.splitlines() if "://" not in line]
    assert "…" not in done.out and max(map(len, tables)) <= 80
    return done.out
