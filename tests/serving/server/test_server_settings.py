from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.server.server_settings import (
    load_config,
    parse_properties,
    read_properties,
)


def test_comments_spaces_and_later_lines() -> None:
    text = "# why\n! also\n\n a = 1 \nb=x=y\na=2\n"
    assert parse_properties(text) == {"a": "2", "b": "x=y"}


def test_backslash_continues_a_line() -> None:
    text = 'models={\\\n  "echo": {}\\\n}\nnext=1'
    assert parse_properties(text) == {"models": '{"echo": {}}', "next": "1"}


def test_line_without_equals_sign_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("a=1\nbatch_size 8\n")
    with pytest.raises(ExpectedError, match=r"config.properties, line 2: 'batch_size 8'"):
        read_properties(path)


def test_missing_file_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="cannot read"):
        read_properties(tmp_path / "absent")


def test_variables_of_the_environment_are_put_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_TEST_PORT", "8123")
    monkeypatch.setenv("OFFPATH_TEST_TEXT", r"a\1$0")
    monkeypatch.setenv("TS_JOB_QUEUE_SIZE", "7")
    path = tmp_path / "config.properties"
    path.write_text(
        "inference_address=http://127.0.0.1:$$OFFPATH_TEST_PORT$$\n"
        "both=$$OFFPATH_TEST_TEXT$$-$$OFFPATH_TEST_PORT$$\n"
        "job_queue_size=$$OFFPATH_TEST_PORT$$\n"
        "enable_envvars_config=true\nplain=$$ $X$ $$X$$\n".replace("$$X$$", "$$$$")
    )
    assert load_config(path) == {
        "inference_address": "http://127.0.0.1:8123",
        "both": r"a\1$0-8123",
        "job_queue_size": "7",
        "enable_envvars_config": "true",
        "plain": "$$ $X$ $$$$",
    }


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("job_queue_size=$$OFFPATH_TEST_NONE$$\n")
    with pytest.raises(ExpectedError, match="job_queue_size names 'OFFPATH_TEST_NONE', a variable"):
        load_config(path)
