"""A report: headed sections of charts and Markdown text, as plain data.

`terminal.py`, `page.py` and `charts.py` render a report without knowing where its figures come
from. Names in a report come from strangers, so every text is escaped when it becomes Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offpath.profiling.core.figures import format_bytes
from offpath.profiling.report.charts import Chart
from offpath.serving.printable import printable

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run

# Everything that Markdown, or GitHub's kind of it, may take for markup within a line.
MARKUP = re.compile(r"[\\`*_\[\]<>&|~$#]")


@dataclass(frozen=True)
class Section:
    """A headed part of a report. The terminal shows it if it has tables.

    Attributes:
        tables: Markdown, see `format_table`.
        note: plain text that says how to read it, one paragraph per line.
        is_folded: left out of the terminal, and closed in the page.
    """

    heading: str
    tables: str = ""
    charts: Sequence[Chart] = ()
    note: str = ""
    is_folded: bool = False


@dataclass(frozen=True)
class Document:
    """Everything that is shown of one run or calculation.

    Attributes:
        command: the command line that made the result.
        facts: short facts under the title: host, workloads.
        details: facts shown on demand: versions, settings.
        warnings: reasons to doubt the figures, as `KIND: text` or plain text.
        headline: the charts of `--plot`, for a README or a slide.
        pages: whole HTML pages by title, such as flame graphs, which the page shows as frames.
    """

    title: str
    sections: Sequence[Section]
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    headline: Sequence[Chart] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


def escape(text: str) -> str:
    """Returns one line of plain text as Markdown that shows it as it is."""
    return MARKUP.sub(r"\\\g<0>", printable(text))


def format_code(text: str) -> str:
    """Returns one line of source code as Markdown, for the cell of a table."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{printable(text)}{space}{fence}".replace("|", "\\|")


def format_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    note: str = "",
    words: int = 1,
    code: int | None = None,
    has_total: bool = False,
) -> str:
    """Formats a table of plain texts as Markdown; empty where nothing was measured.

    Rows and columns without any figure are left out.

    Args:
        title, note: texts above and below the table.
        words: number of columns at the left that hold words; the others hold figures.
        code: index of a column that holds source code.
        has_total: the last row is a sum.
    """
    rows = [row for row in rows if words == len(columns) or any(row[words:])]
    if not rows:
        return ""
    kept = [n for n in range(len(columns)) if n < words or any(row[n] for row in rows)]
    lines = [
        [escape(columns[n]) for n in kept],
        ["---" if n < words or n == code else "---:" for n in kept],
        *([format_code(row[n]) if n == code else escape(row[n]) for n in kept] for row in rows),
    ]
    if has_total:
        lines[-1] = [f"**{cell}**" if cell else "" for cell in lines[-1]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return join_blocks(f"### {escape(title)}" if title else "", table, escape(note))


def join_blocks(*blocks: str) -> str:
    """Joins blocks of Markdown, some of which may be empty."""
    return "\n\n".join(filter(None, blocks))


def format_markdown(document: Document, is_narrow: bool = False) -> str:
    """Returns the command line, the sections with tables, and the warnings.

    Args:
        is_narrow: for a terminal, without the command line and what does not fit 80 columns.
    """
    shown = [one for one in document.sections if one.tables and not (is_narrow and one.is_folded)]
    command = "" if is_narrow else printable(document.command)
    return join_blocks(
        f"    {command}" if command else "",
        *(
            join_blocks(
                f"## {escape(section.heading)}",
                section.tables,
                *map(escape, section.note.split("\n")),
            )
            for section in shown
        ),
        *(f"> {escape(warning)}" for warning in document.warnings),
    )


def describe_run(run: Run, document: Document) -> Document:
    """Adds a run's command, facts and details to its document."""
    details = {
        "versions": describe_versions(run.host),
        "settings": describe_settings(run.settings),
        **{name: describe_settings(facts) for name, facts in run.variants.items()},
    }
    facts = {
        "taken": run.started_at.replace("T", " ").replace("+00:00", " UTC"),
        "host": describe_host(run.host),
        **({"rounds": str(run.rounds)} if run.rounds > 1 else {}),
        **{name: describe_workload(it) for name, it in run.workloads.items()},
    }
    return replace(
        document,
        command=run.command,
        facts=facts,
        details={name: text for name, text in details.items() if text},
    )


def describe_host(host: Mapping[str, Any]) -> str:
    parts = [
        host.get("cpu"),
        f"{host['cores']} cores" if "cores" in host else None,
        f"{host['memory_gib']} GiB" if "memory_gib" in host else None,
        host.get("system"),
        host.get("gpu"),
    ]
    return ", ".join(str(part) for part in parts if part)


def describe_versions(host: Mapping[str, Any]) -> str:
    versions = {
        "Python": host.get("python"),
        "Java": host.get("java"),
        "offpath": host.get("offpath"),
        **host.get("packages", {}),
    }
    return ", ".join(f"{name} {text}" for name, text in versions.items() if text)


def describe_workload(workload: Mapping[str, Any]) -> str:
    if not workload:
        return ""
    mean = workload.get("mean_bytes")
    size = f" of {format_bytes(mean)} mean" if mean else ""
    return f"{workload.get('count', '?')} photographs{size}"


def describe_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in settings.items()
        if value not in (None, "", {}, [])
    )
