"""What `offpath bench` refuses, before it starts anything."""

from __future__ import annotations

import signal

import pytest

from offpath.cli import run
from offpath.commands.showing import Outputs, keeping
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


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(
            ["compare", "--seconds", "5", "--requests", "10"],
            2,
            "exclude",
            id="both-ends",
        ),
        pytest.param(
            ["compare", "--servers", "offpath,nginx"], 2, "'nginx'", id="unknown-server"
        ),
        pytest.param(
            ["compare", "--servers", "torchserve-stock,torchserve-stock"],
            2,
            "distinct",
            id="server-twice",
        ),
        pytest.param(
            ["compare", "--variant", "a=offpath:job_queue=9"],
            2,
            "no setting 'job_queue'",
            id="unknown-setting",
        ),
        pytest.param(
            ["compare", "--workload", "nowhere"], 2, "photos-55k", id="no-such-folder"
        ),
        pytest.param(
            ["compare", "--generator", "wrk", "--requests", "9"],
            2,
            "wrk",
            id="wrk-cannot",
        ),
        pytest.param(["compare", "--probe", "rust"], 2, "start or memory", id="probe"),
        pytest.param(
            ["compare", "--seconds", "0"], 2, "needs --probe start", id="no-load"
        ),
        pytest.param(["show", "nothing.json"], 2, "cannot read", id="no-such-result"),
    ],
)
def test_wrong_input_is_said(argv, code, said, capsys):
    assert exit_code(argv) == code
    assert said in capsys.readouterr().err


def test_an_empty_folder_is_said(tmp_path, capsys):
    assert exit_code(["compare", "--workload", str(tmp_path)]) == 2
    assert "no photographs in" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_where_the_finished_part_is(number, tmp_path, capsys):
    outputs = Outputs(tmp_path / "result.json")
    make_compare().save(outputs.json_path)
    with pytest.raises(KeyboardInterrupt), keeping(outputs, "windows"):
        signal.raise_signal(number)
    said = f"finished windows are in {outputs.json_path}"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param(["sweep", "--users", "1,x"], "whole numbers", id="users"),
        pytest.param(["sweep", "--vary", "size=1"], "batch-size", id="vary-what"),
        pytest.param(["sweep", "--vary", "delay=0"], "above 0", id="vary-value"),
        pytest.param(["sweep", "--preset", "cpu"], "--vary", id="preset"),
        pytest.param(["compare", "--workers", "0"], "1,2", id="workers"),
        pytest.param(["latency", "--model", "vgg"], "--model", id="model"),
        pytest.param(["compare", "--rate", "0"], "--rate", id="rate"),
    ],
)
def test_wrong_usage_is_said(argv, said, capsys):
    assert exit_code(argv) == 2
    assert said in capsys.readouterr().err


def test_a_saved_result_is_shown(tmp_path, capsys):
    path = tmp_path / "result.json"
    make_compare().save(path)
    assert exit_code(["show", str(path), "--plot", str(tmp_path / "a.svg")]) == 0
    assert "121" in capsys.readouterr().out
    assert (tmp_path / "a.svg").stat().st_size > 1000
