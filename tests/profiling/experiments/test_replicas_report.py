"""What `bench show` makes of replicas over time."""

from __future__ import annotations

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.experiments.registry import document_of
from offpath.profiling.experiments.replicas_report import (
    ANSWERED,
    AT,
    CLIENTS,
    FAILED,
    NAME,
    RUNNING,
    WANTED,
)
from offpath.profiling.report.document import LineChart, Table

SAMPLES = {
    AT: [2.0, 4.0, 6.0, 8.0, 10.0],
    CLIENTS: [4.0, 32.0, 32.0, 32.0, 32.0],
    WANTED: [1.0, 1.0, 3.0, 3.0, 3.0],
    RUNNING: [1.0, 1.0, 1.0, 3.0, 3.0],
    ANSWERED: [40.0, 45.0, 45.0, 110.0, 130.0],
    FAILED: [0.0, 0.0, 0.0, 1.0, 2.0],
}


def test_replicas_answers_and_clients_are_shown_over_time() -> None:
    run = Run(NAME, "a test", {}, {"offpath-ray": {}}, {"photos-55k": {}})
    run.add(0, "offpath-ray", Cell("photos-55k", 32), SAMPLES)
    document = document_of(run, None)
    *charts, table = document.sections[0].parts
    assert document.headline == charts
    assert isinstance(charts[0], LineChart) and isinstance(table, Table)
    wanted, running = charts[0].series
    # Where the line bends, and its ends.
    assert wanted.points == [(2.0, 1.0), (4.0, 1.0), (6.0, 3.0), (10.0, 3.0)]
    assert running.points == [(2.0, 1.0), (6.0, 1.0), (8.0, 3.0), (10.0, 3.0)]
    assert [*map(list, table.rows)] == [
        ["2-2", "4", "40", "1", "1", "0"],
        ["4-4", "32", "45", "1", "1", "0"],
        ["6-6", "32", "45", "3", "1", "0"],
        ["8-10", "32", "120", "3", "3", "3"],
    ]
