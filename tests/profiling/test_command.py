"""Results of `offpath bench`: kept, shown, and never overwritten."""

from __future__ import annotations

import signal

import pytest

from offpath.cli import run
from offpath.commands.run_outputs import Outputs, keeping
from tests.profiling.runs import make_compare
from tests.support.pictures import jpeg


def exit_code(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["bench", *argv])
    return int(ended.value.code or 0)


def test_a_result_is_never_overwritten(tmp_path, capsys):
    path = tmp_path / "result.json"
    make_compare().save(path)
    before = path.read_bytes()
    assert exit_code(["compare", "--json", str(path)]) == 2
    assert "--append" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_an_unlike_result_is_refused_before_the_run(tmp_path, capsys):
    path = tmp_path / "result.json"
    make_compare().save(path)
    (tmp_path / "a.jpg").write_bytes(jpeg(size=(16, 16)))
    argv = ["compare", "--json", str(path), "--append", "--workload", str(tmp_path)]
    assert exit_code(argv) == 2
    assert "not alike" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_where_the_finished_part_is(number, tmp_path, capsys):
    outputs = Outputs(tmp_path / "result.json")
    make_compare().save(outputs.json_path)
    with pytest.raises(KeyboardInterrupt), keeping(outputs, "windows"):
        signal.raise_signal(number)
    said = f"finished windows are in {outputs.json_path}"
    assert said in capsys.readouterr().err


def test_a_saved_result_is_shown(tmp_path, capsys):
    path = tmp_path / "result.json"
    make_compare().save(path)
    assert exit_code(["show", str(path), "--plot", str(tmp_path / "a.svg")]) == 0
    assert "121" in capsys.readouterr().out
    assert (tmp_path / "a.svg").stat().st_size > 1000
