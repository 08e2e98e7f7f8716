"""Reads a prediction log with DuckDB: labels, errors, and where the time goes.

usage: python report.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

QUERIES = {
    "labels": """
        SELECT predictions[1].label AS label, count(*) AS answers,
               round(avg(predictions[1].probability), 3) AS mean_probability
        FROM log WHERE status = 200 GROUP BY label ORDER BY answers DESC, label LIMIT 10""",
    "errors": """
        SELECT status, error, count(*) AS answers
        FROM log WHERE status <> 200 GROUP BY ALL ORDER BY answers DESC""",
    "milliseconds per batch": """
        SELECT count(*) AS requests, round(avg(batch_size), 1) AS batch_size,
               round(avg(stage_ms.decode), 2) AS decode,
               round(avg(stage_ms.inference), 2) AS inference
        FROM log WHERE status = 200""",
}


def main(folder: Path) -> None:
    """Prints one table per query over all records in the folder."""
    files = [str(file) for file in folder.rglob("*.jsonl*")]
    if not files:
        sys.exit(f"no records in {folder}; send a few images first, then wait a minute")
    log = duckdb.read_json(files)
    for title, query in QUERIES.items():
        print(title)
        print(log.query("log", query))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__).strip())
    main(Path(sys.argv[1]))
