"""`offpath profile compare` and `show` as a user types them."""

from __future__ import annotations

import pytest

from offpath.cli import run
from tests.profiling.in_process.profiles import (
    IMAGES,
    add_handler,
    make_batches,
    make_run,
)


def exit_code(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["profile", *argv])
    return int(ended.value.code or 0)


@pytest.fixture
def saved(tmp_path):
    add_handler(make_run()).save(tmp_path / "a.json")
    add_handler(make_run(), batches=make_batches(2)).save(tmp_path / "b.json")
    others = make_run(workloads={"photos": IMAGES | {"identity": "zz"}})
    add_handler(others).save(tmp_path / "c.json")
    return tmp_path


def test_two_files_are_compared_in_the_terminal_as_json_and_as_a_page(saved, capsys):
    argv = ["compare", str(saved / "a.json"), str(saved / "b.json")]
    argv += ["--json", str(saved / "rows.json"), "--html", str(saved / "rows.html")]
    assert exit_code(argv) == 0
    shown = capsys.readouterr().out
    assert "2.00 x" in shown and "B / A" in shown
    assert "2.00 x" in (saved / "rows.html").read_text()
    # What was saved is shown as it was.
    assert exit_code(["show", str(saved / "rows.json")]) == 0
    assert "2.00 x" in capsys.readouterr().out


def test_unlike_files_are_refused_unless_told(saved, capsys):
    argv = ["compare", str(saved / "a.json"), str(saved / "c.json")]
    assert exit_code(argv) == 1
    assert "images: ['ab'], ['zz']" in capsys.readouterr().err
    assert exit_code([*argv, "--force"]) == 0
    assert "also differs: images" in capsys.readouterr().out


def test_a_saved_profile_is_shown_again(saved, capsys):
    argv = ["show", str(saved / "a.json")]
    argv += ["--html", str(saved / "a.html"), "--plot", str(saved / "a.svg")]
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
