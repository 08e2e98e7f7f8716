"""The result of every measurement: a header and tidy rows in one JSON format, no statistics.

A row is one figure of one variant in one cell of the grid in one round. Figures are raw: statistics
are computed when a run is read (`statistics.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import msgspec

from offpath.errors import ExpectedError, WrongOption
from offpath.profiling.core.host_facts import describe_host

FORMAT = "offpath-run/1"
# End of a metric's name -> unit of the row.
UNITS = {"s": "s", "ms": "ms", "bytes": "B"}
# No clock here is finer than a microsecond.
DECIMALS = 3

# Metric -> one value, or one value per request.
Figures = Mapping[str, float | Sequence[float]]


class Observer(Protocol):
    """Is told how a run goes on."""

    def on_step(self, text: str) -> None:
        """Is called when a step of the run begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Receives the live count of replies inside a window."""

    def on_progress(self, done: int, total: int) -> None:
        """Receives the number of measured cells, and of all cells."""

    def on_failure(self, variant: str, reason: str) -> None:
        """Is called when a variant is left out from now on."""


@dataclass(frozen=True)
class Cell:
    """A point of an experiment's grid; a factor that does not vary keeps its default."""

    workload: str = ""
    clients: int = 0
    batch_size: int = 0
    rate: float = 0.0

    def describe(self) -> str:
        parts = [
            self.workload,
            f"{self.clients} client{'s' * (self.clients > 1)}" if self.clients else "",
            f"batch {self.batch_size}" if self.batch_size else "",
            f"{self.rate:g} per second" if self.rate else "",
        ]
        return ", ".join(filter(None, parts)) or "measure"


@dataclass(frozen=True)
class Row:
    """A figure; `value` is None where `values` holds one value per request."""

    round: int
    variant: str
    workload: str
    clients: int
    batch_size: int
    metric: str
    unit: str
    value: float | None
    values: list[float] | None = None
    rate: float = 0.0

    @property
    def cell(self) -> Cell:
        return Cell(self.workload, self.clients, self.batch_size, self.rate)


COLUMNS = [column.name for column in fields(Row)]


@dataclass(frozen=True)
class Failure:
    """A variant that did not start, answered wrongly or died, and was left out from then on."""

    round: int
    variant: str
    reason: str


@dataclass
class Run:
    """A measurement with all that is needed to read it.

    Attributes:
        settings: everything that was chosen, including the seed.
        variants: name -> its set-up, in the order of a round.
        workloads: name -> identity, mean_bytes, count.
        started_at: RFC 3339, UTC.
        host: facts from `core.host_facts`.
        not_run: variant -> reason why it cannot run on this machine.
        warnings: doubts that were found during the run.
        details: data beside the rows: functions, lines, stages of a profile.
    """

    experiment: str
    command: str
    settings: dict[str, Any]
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    started_at: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )
    host: dict[str, Any] = field(default_factory=describe_host)
    failures: list[Failure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list, repr=False)

    @property
    def rounds(self) -> int:
        return 1 + max((row.round for row in self.rows), default=-1)

    def add(self, round_: int, variant: str, cell: Cell, figures: Figures) -> None:
        for metric, figure in figures.items():
            value, values = None, None
            if isinstance(figure, Sequence):
                values = [round(one, DECIMALS) for one in figure]
            else:
                value = float(figure)
            place = (cell.workload, cell.clients, cell.batch_size)
            row = Row(round_, variant, *place, metric, unit_of(metric), value, values, cell.rate)
            self.rows.append(row)

    def has_failed(self, variant: str) -> bool:
        return any(failure.variant == variant for failure in self.failures)

    @contextmanager
    def leaving_out(self, round_: int, variant: str, observer: Observer) -> Iterator[None]:
        """Turns an ExpectedError of the block into the failure of a variant."""
        try:
            yield
        except ExpectedError as error:
            self.failures.append(Failure(round_, variant, str(error)))
            observer.on_failure(variant, str(error))

    def save(self, path: Path) -> None:
        """Writes the JSON; an interrupted save leaves the old file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(format_run(self), encoding="utf-8")
        os.replace(partial, path)


def unit_of(metric: str) -> str:
    """Returns the unit that a metric's name ends with; empty for counts."""
    return UNITS.get(metric.rpartition(".")[0].rpartition("_")[2], "") or UNITS.get(
        metric.rpartition("_")[2], ""
    )


def format_run(run: Run) -> str:
    """Formats the JSON with one line per row, so that a diff is readable."""
    header = asdict(replace(run, rows=[]))
    del header["rows"]
    lines = [f' "format": "{FORMAT}"']
    for key, value in header.items():
        text = json.dumps(value, indent=1).replace("\n", "\n ")
        lines.append(f' "{key}": {text}')
    lines.append(f' "columns": {json.dumps(COLUMNS)}')
    rows = ",\n".join("  " + json.dumps(astuple(row), separators=(",", ":")) for row in run.rows)
    lines.append(f' "rows": [\n{rows}\n ]' if rows else ' "rows": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load_run(path: Path) -> Run:
    """Reads a saved run; raises WrongOption where the file is missing or is no run."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        # Older results have no rates of an open loop, the last column.
        if (columns := content.pop("columns", None)) not in (COLUMNS, COLUMNS[:-1]):
            raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
        content["rows"] = [dict(zip(columns, row)) for row in content["rows"]]
        return msgspec.convert(content, Run)
    except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise WrongOption(
            f"cannot read {str(path)!r} as a saved run of offpath: {error}"
        ) from error
