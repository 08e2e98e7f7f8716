from __future__ import annotations

import textwrap

from offpath.profiling.report import charts, declared
from offpath.profiling.report.declared import Column, TableSpec
from tests.support.documents import read_tables

Row = tuple[str, str, str, str]


def test_the_example_in_the_modules_description_works() -> None:
    example = (declared.__doc__ or "").split("row:\n", 1)[1].split("\n`measured.py`")[0]
    names = {**vars(charts), **vars(declared)}
    exec(textwrap.dedent(example), names)
    (section,) = names["document"].sections
    (table,) = read_tables(section.tables)
    assert section.heading == "Parts"
    assert table[1:] == [["decode", "2.0"], ["forward", "1.0"]]
    assert list(names["document"].headline) == section.charts


TABLE: TableSpec[list[Row], Row] = TableSpec(
    lambda rows: f"{len(rows)} rows",
    lambda rows: rows,
    (
        Column("", lambda row: row[0]),
        Column("clients", lambda row: row[1], is_factor=True),
        Column("rate", lambda row: row[2]),
        Column("memory", lambda row: row[3]),
    ),
)


def test_rows_and_columns_without_figures_are_left_out() -> None:
    (table,) = TABLE([("a", "1", "5", ""), ("b", "1", "", ""), ("c", "4", "6", "")])
    assert "3 rows" in table
    assert read_tables(table) == [[["", "clients", "rate"], ["a", "1", "5"], ["c", "4", "6"]]]
    assert TABLE([("a", "1", "", "")]) == []


def test_a_factor_that_does_not_differ_is_no_column() -> None:
    (table,) = TABLE([("a", "1", "5", "7"), ("b", "1", "6", "")])
    assert read_tables(table)[0][0] == ["", "rate", "memory"]


def test_several_sources_name_their_headings_and_headline() -> None:
    def draw(rows: list[Row]) -> list[charts.Chart]:
        return [charts.BarChart("rates", "1/s", [])]

    report = declared.Report("t", [declared.Part("speed", (TABLE, draw))], [draw])
    rows = [("a", "1", "5", "7")]
    made = declared.make_document(report, {"photos": rows, "pixels": rows, "none": []})
    assert [s.heading for s in made.sections][:2] == ["photos: speed", "pixels: speed"]
    assert made.headline[0].title == "photos: rates"
