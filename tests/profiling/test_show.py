"""`offpath bench show` on every committed result, which is what their README promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.cli import run
from offpath.commands.bench_show import PAGED, PLOTTED, SHOWN
from offpath.profiling.core.saved import read_format

FOLDER = Path(__file__).parents[2] / "profiling" / "results"
RESULTS = sorted(FOLDER.glob("*.json"))
BENCHED = [path for path in RESULTS if read_format(path) != "offpath-profile"]


def exit_code(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["bench", "show", *argv])
    return int(ended.value.code or 0)


def test_every_kind_is_committed() -> None:
    assert {read_format(path) for path in BENCHED} == SHOWN.keys()


@pytest.mark.parametrize("path", BENCHED, ids=lambda path: path.stem)
def test_a_committed_result_is_shown(
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    kind, drawn = read_format(path), []
    if kind in PLOTTED:
        drawn += ["--plot", str(tmp_path / "a.svg")]
    if kind in PAGED:
        drawn += ["--html", str(tmp_path / "a.html")]
    assert exit_code(str(path), *drawn) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) > 3
    # Cut by rich where a table does not fit.
    assert "…" not in shown
    assert [(tmp_path / name).exists() for name in ("a.svg", "a.html")] == [
        kind in PLOTTED,
        kind in PAGED,
    ]


@pytest.mark.parametrize("path", BENCHED, ids=lambda path: path.stem)
def test_a_committed_result_is_shown_as_markdown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(str(path), "--markdown") == 0
    shown = capsys.readouterr().out
    assert "|---" in shown or "| ---" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[]", "does not say its format", id="no-result"),
        pytest.param('{"format": "other/1"}', "no format 'other'", id="other"),
        pytest.param(
            '{"format": "offpath-start/9"}', "not offpath-start/1", id="version"
        ),
        pytest.param(
            '{"format": "offpath-start/1", "command": 7}', "$.command", id="field"
        ),
        pytest.param('{"format": "offpath-profile/1"}', "profile show", id="profile"),
    ],
)
def test_what_is_no_result_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    assert exit_code(str(path)) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plot", "--html"])
def test_what_cannot_be_drawn_is_said(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(str(FOLDER / "start.json"), option, str(tmp_path / "a")) == 1
    assert "only tables" in capsys.readouterr().err


def test_a_missing_field_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((FOLDER / "start.json").read_text())
    del content["measurements"][1]["ready_s"]
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    assert exit_code(str(path)) == 1
    err = capsys.readouterr().err
    assert "`ready_s`" in err and "$.measurements[1]" in err
