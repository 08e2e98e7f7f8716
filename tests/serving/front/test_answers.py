"""The door's counts, also where nginx and the door cannot write to a full disk."""

from __future__ import annotations

import re
from pathlib import Path

from offpath.serving.front.answers import Answers
from offpath.serving.front.nginx_config import ANSWERS, DOOR_METRICS


def read_count(run: Path, status: str) -> float:
    page = (run / DOOR_METRICS).read_text()
    counts = rf'^offpath_door_responses_total{{status="{status}",.*}} (\S+)$'
    return sum(map(float, re.findall(counts, page, re.MULTILINE)))


def test_half_lines_are_left_out_and_a_page_that_cannot_be_written_stays(
    tmp_path: Path,
) -> None:
    answers = Answers(tmp_path)
    log, obstacle = tmp_path / ANSWERS, (tmp_path / DOOR_METRICS).with_suffix(".new")
    log.write_text("0.010 200 -\n0.010 2000.010 200 -\n.5\n\n0.010.005 200 -\n0.020 404 NotFound\n")
    answers.count(is_ready=True)
    assert (read_count(tmp_path, "200"), read_count(tmp_path, "404")) == (1, 1)
    obstacle.mkdir()
    with open(log, "a") as file:
        file.write("0.010 200 -\n")
    answers.count(is_ready=True)
    assert read_count(tmp_path, "200") == 1
    obstacle.rmdir()
    answers.count(is_ready=True)
    assert read_count(tmp_path, "200") == 2
    answers.close()


def test_copies_to_a_shadow_are_no_answers(tmp_path: Path) -> None:
    answers = Answers(tmp_path)
    (tmp_path / ANSWERS).write_text("copy 502 -\ncopy 200 -\ncopy 502 -\n0.010 200 -\n")
    answers.count(is_ready=True)
    answers.close()
    page = (tmp_path / DOOR_METRICS).read_text()
    for status, number in (("200", 1), ("502", 2), ("504", 0)):
        assert f'offpath_door_copies_total{{status="{status}"}} {number}\n' in page
    assert (read_count(tmp_path, "200"), read_count(tmp_path, "502")) == (1, 0)
