"""`offpath profile compare` and `show` as a user types them."""

from __future__ import annotations

import json

import pytest

from offpath.cli import run
from offpath.profiling.in_process.profile_result import PROFILE
from tests.profiling.profiles import make_handler, make_profile


def exit_code(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["profile", *argv])
    return int(ended.value.code or 0)


@pytest.fixture
def saved(tmp_path):
    PROFILE.save(make_profile(), tmp_path / "a.json")
    PROFILE.save(make_profile(make_handler(factor=2)), tmp_path / "b.json")
    other = make_profile(workload={"name": "others", "identity": "zz"})
    PROFILE.save(other, tmp_path / "c.json")
    return tmp_path


def test_two_files_are_compared_in_the_terminal_as_json_and_as_a_page(saved, capsys):
    argv = ["compare", str(saved / "a.json"), str(saved / "b.json")]
    argv += ["--json", str(saved / "rows.json"), "--html", str(saved / "rows.html")]
    assert exit_code(argv) == 0
    shown = capsys.readouterr().out
    assert "2.00 x" in shown and "B / A" in shown
    rows = json.loads((saved / "rows.json").read_text())["comparisons"][0]["stages"]
    assert rows[0]["name"] == "decode" and rows[0]["ratio"] == pytest.approx(2)
    assert "2.00 x" in (saved / "rows.html").read_text()


def test_unlike_files_are_refused_unless_told(saved, capsys):
    argv = ["compare", str(saved / "a.json"), str(saved / "c.json")]
    assert exit_code(argv) == 1
    assert "workload.identity" in capsys.readouterr().err
    assert exit_code([*argv, "--force"]) == 0
    assert "also differs: workload.identity" in capsys.readouterr().out


def test_a_saved_profile_is_shown_again(saved, capsys):
    argv = ["show", str(saved / "a.json")]
    argv += ["--html", str(saved / "a.html"), "--svg", str(saved / "a.svg")]
    assert exit_code(argv) == 0
    assert "inference" in capsys.readouterr().out
    assert "inference" in (saved / "a.html").read_text()
    assert "inference" in (saved / "a.svg").read_text()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        pytest.param(["show", "nothing.json"], 1, "cannot read", id="no-such-file"),
        pytest.param(["compare", "nothing.json"], 2, "Missing argument", id="one-file"),
        pytest.param(
            ["compare", "no.json", "no.json"], 1, "cannot read", id="no-such-files"
        ),
    ],
)
def test_wrong_input_is_said(argv, code, said, capsys):
    assert exit_code(argv) == code
    assert said in capsys.readouterr().err
