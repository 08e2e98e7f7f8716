"""`offpath logs report`: two sets of records that a real prediction log has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log.record import Record
from tests.offpath.commands.conftest import write_log
from tests.offpath.conftest import Run, read_json_keys

DAY = "2026-11-{day:02}T12:00:00.000Z"


def answer(
    event_id: str, version: str, label: str, score: float, day: int = 20, **more: Any
) -> Record:
    when = DAY.format(day=day)
    return Record(event_id, when, "m", version, None, predictions=[(label, score)], **more)


def compare(run: Run, *arguments: object) -> dict[str, Any]:
    done = run("logs", "report", *arguments, "--json")
    assert done.code == 0, done.err
    content: dict[str, Any] = json.loads(done.out)
    assert list(content) == read_json_keys()["logs report"]
    return content


def test_a_shadows_answers_are_compared_with_the_originals_by_request(
    run: Run, tmp_path: Path
) -> None:
    error = {"status": 422, "error": "UndecodableImage"}
    records = [
        answer("same", "1", "cat", 0.9, payload_bytes=1000, stage_ms={"decode": 2.0}),
        answer("same", "2", "cat", 0.8, payload_bytes=1000, stage_ms={"decode": 6.0}),
        answer("unsure", "1", "cat", 0.51),
        answer("unsure", "2", "dog", 0.52),
        answer("sure", "1", "cat", 0.99),
        # A door with several hosts marks each attempt.
        answer("sure~copy", "2", "dog", 0.97),
        Record("broken", DAY.format(day=20), "m", "1", **error),
        answer("broken", "2", "fox", 0.4),
        Record("alone", "2026-11-20T14:00:00+02:00", "m", "1", predictions=[("cat", 0.7)]),
    ]
    uri = write_log(tmp_path / "out", records)
    found = compare(run, "--a", f"{uri},version=1", "--b", "version=2")

    def rows(table: str, *columns: str) -> list[list[Any]]:
        return [[row[name] for name in columns] for row in found[table]]

    assert rows("sets", "side", "version", "records") == [["a", "m 1", 5], ["b", "m 2", 4]]
    assert rows("errors", "error", "a", "b", "share_a") == [
        ["(none)", 4, 4, 0.8],
        ["UndecodableImage", 1, 0, 0.2],
    ]
    assert rows("labels", "label", "a", "b") == [["cat", 4, 1], ["dog", 0, 2], ["fox", 0, 1]]
    figures = found["figures"]
    assert (figures["requests_a"], figures["requests_b"]) == (5, 4)
    assert (figures["pairs"], figures["disagreement"]) == (4, 0.75)
    assert (figures["error_share_a"], figures["error_share_b"]) == (0.2, 0)
    assert rows("disagreements", "a", "b", "pairs", "share_of_pairs") == [
        ["cat", "dog", 2, 0.5],
        ["UndecodableImage", "fox", 1, 0.25],
    ]
    spreads = {row["quantity"]: row for row in found["spreads"]}
    assert [spreads["payload_bytes"][f"mean_{side}"] for side in "ab"] == [200, 250]
    assert (spreads["decode_ms"]["mean_a"], spreads["decode_ms"]["mean_b"]) == (2, 6)
    # Another zone is another writer's.
    assert rows("sets", "first", "last") == [["2026-11-20T12:00:00Z"] * 2] * 2
    # A record in both sets is not compared with itself.
    assert compare(run, "--a", uri, "--b", uri)["figures"]["pairs"] == 8


@pytest.fixture
def two_weeks(tmp_path: Path) -> str:
    """A log in which cats become rarer from the 15th on, and one other model's record."""
    early = [answer(f"e{n}", "1", "cat" if n % 2 else "dog", 0.9, 10) for n in range(400)]
    late = [answer(f"l{n}", "1", "cat" if n % 8 else "dog", 0.9, 17) for n in range(400)]
    odd = Record("odd", DAY.format(day=17), "other", "1", status=500, error="Bug")
    for day, records in ((10, early), (17, [*late, odd])):
        write_log(tmp_path / "written", records)
        # An object is filed under the hour of writing, not of inference.
        (path,) = (tmp_path / "written").glob("dt=*/*/*")
        place = tmp_path / f"out/dt=2026-11-{day}/hour=12" / path.name
        place.parent.mkdir(parents=True)
        path.rename(place)
    return f"file://{tmp_path}/out"


def test_a_change_between_two_periods_is_told_from_noise(run: Run, two_weeks: str) -> None:
    early = f"{two_weeks},until=2026-11-15,model=m"
    sets = ("--a", early, "--b", "since=2026-11-15,model=m")
    found = compare(run, *sets)
    assert [row["records"] for row in found["sets"]] == [400, 400]
    assert found["sets"][1]["first"] == "2026-11-17T12:00:00Z"
    assert found["figures"]["pairs"] == 0
    # (0.874 - 0.5) ln(0.874 / 0.5) + (0.126 - 0.5) ln(0.126 / 0.5), with half a record per bin. The
    # 95 % point of chi-squared with one degree of freedom is 3.841.
    distances = {row["name"]: row for row in found["distances"]}
    distance = distances["label"]
    assert distance["psi"] == pytest.approx(0.72471, abs=1e-4)
    assert distance["noise"] == pytest.approx(3.841 * 2 / 400, rel=0.03)
    assert (distance["bins"], distance["values_a"], distance["values_b"]) == (2, 400, 400)
    assert (distances["score"]["psi"], distances["score"]["change"]) == (0, "within noise")
    assert "large" in run("logs", "report", *sets).out
    # What is not known is no success.
    done = run("logs", "report", "--a", early, "--b", "model=none")
    assert done.code == 1 and "no records in --b" in done.err
