"""`offpath bench show` on every committed result, which is what their README promises."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from offpath.cli import run
from offpath.commands.run_outputs import Outputs, measuring
from tests.profiling.runs import make_compare

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "profiling" / "results", Path(__file__).parent / "saved"]
RESULTS = sorted(file for folder in FOLDERS for file in folder.glob("*.json"))


def exit_code(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["bench", "show", *argv])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_committed_result_is_shown_and_fits_80_columns(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_code(str(path)) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) > 3
    # Cut by rich where a table does not fit.
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_where_the_finished_part_is(number, tmp_path, capsys):
    outputs = Outputs(tmp_path / "result.json", None)
    make_compare().save(outputs.json_path)
    with pytest.raises(KeyboardInterrupt), measuring(outputs, "windows"):
        signal.raise_signal(number)
    said = f"finished windows are in {outputs.json_path}"
    assert said in capsys.readouterr().err
