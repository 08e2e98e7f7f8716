"""Writes a benchmark as one self-contained HTML page, and the charts of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.result import BenchResult
from offpath.profiling.core.summary import (
    PERCENTILES,
    Row,
    combined_limits,
    drawn_limit,
    percentile,
    select,
    summarise,
)
from offpath.profiling.report.old_page import (
    Bar,
    Section,
    Series,
    StackedBar,
    assign_colours,
    bar_chart,
    join,
    legend,
    line_chart,
    render_page,
    stacked_bars,
    table,
    write_html,
)
from offpath.profiling.report.report import (
    CPU_GROUPS,
    find_noisy_limits,
    find_warnings,
    format_failures,
)

CURVE_PERCENTS = (0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100)


@dataclass(frozen=True)
class SweepPoint:
    """One server under so many virtual users; `failures` are replies that were not 200."""

    server: str
    users: int
    rate: float
    p50_ms: float
    p95_ms: float
    failures: int


def write_bench_page(
    result: BenchResult, path: Path, baseline: str | None = None
) -> None:
    """Writes the result's page, replacing the file.

    Args:
        baseline: server that the others are divided by; None for no ratios.
    """
    rows = summarise(result, baseline)
    sections = [
        section
        for workload in result.workloads
        for section in make_workload_sections(result, rows, workload, baseline)
    ]
    page = render_page(
        "Servers side by side: " + ", ".join(dict.fromkeys(row.server for row in rows)),
        [*sections, *make_start_sections(result)],
        command=result.command,
        facts=list_facts(result),
        details=list_details(result),
        warnings=list_warnings(result, rows),
    )
    write_html(page, path)


def list_facts(result: BenchResult) -> dict[str, str]:
    """When, where and on what."""
    return {
        "taken": format_time(result.started_at),
        "host": describe_host(result.host),
        "rounds": str(result.rounds),
        **{name: describe_workload(it) for name, it in result.workloads.items()},
    }


def list_details(result: BenchResult) -> dict[str, str]:
    """Versions and settings, of the run and of each server."""
    details = {
        "versions": describe_versions(result.host),
        "settings": describe_settings(result.settings),
        **{name: describe_settings(it) for name, it in result.servers.items()},
    }
    return {name: text for name, text in details.items() if text}


def list_warnings(result: BenchResult, rows: Sequence[Row]) -> list[str]:
    """What makes the figures doubtful, and which servers are missing and why."""
    return [
        *(f"not run: {name}: {reason}" for name, reason in result.not_run.items()),
        *(f"left out after a failure: {f.server}: {f.reason}" for f in result.failures),
        *find_noisy_limits(result),
        *find_warnings(rows),
    ]


def make_workload_sections(
    result: BenchResult, rows: Sequence[Row], workload: str, baseline: str | None
) -> list[Section]:
    """Rates, latencies and CPU of all servers on one workload."""
    rows = [row for row in rows if row.workload == workload]
    if not rows:
        return []
    return [
        make_rate_section(result, rows, workload, baseline),
        make_latency_section(result, rows, workload),
        make_cost_section(rows, workload),
    ]


def make_rate_section(
    result: BenchResult, rows: Sequence[Row], workload: str, baseline: str | None
) -> Section:
    """Requests a second with their spread and the limits."""
    line = drawn_limit(result, workload)
    chart = bar_chart(
        [make_rate_bar(row) for row in rows],
        label=f"requests a second, {workload}",
        limit=line and (line.rate, f"{line.name}, {format_figure(line.rate)} a second"),
    )
    headers = [
        "server",
        "req/s",
        "lowest",
        "highest",
        f"x {baseline}" if baseline else "x",
    ]
    headers += ["% of decode", "% of limit", "failed"]
    note = "Good replies a second: median of the rounds; the thin line spans them."
    note += format_combined(combined_limits(result, workload))
    body = chart + table(headers, [list_rate_cells(row) for row in rows])
    return Section(f"{workload}: requests a second", body, note)


def format_combined(limits: Mapping[str | None, float]) -> str:
    """The limits by engine as a sentence; None is eager, the only one in most runs."""
    if not limits:
        return ""
    rates = ", ".join(
        format_figure(rate) + (f" by {engine or 'eager'}" if len(limits) > 1 else "")
        for engine, rate in limits.items()
    )
    whose = "the limit" if len(limits) == 1 else "each server's limit is its engine's"
    return f" Decode and forward together allow {rates} ({whose})."


def make_rate_bar(row: Row) -> Bar:
    """One server's rate."""
    ratio = "" if row.ratio is None else f" ({format_figure(row.ratio)} x)"
    text = f"{format_figure(row.rate)}{ratio}"
    is_ours = row.server.startswith("offpath")
    return Bar(row.server, row.rate, text, is_ours, row.rate_low, row.rate_high)


def list_rate_cells(row: Row) -> list[str]:
    """One server's rates as text."""
    shares = (row.decode_share, row.limit_share)
    return [
        row.server,
        *map(format_figure, (row.rate, row.rate_low, row.rate_high)),
        "" if row.ratio is None else format_figure(row.ratio),
        *("" if share is None else f"{100 * share:.0f}" for share in shares),
        format_failures(row.failures),
    ]


def make_latency_section(
    result: BenchResult, rows: Sequence[Row], workload: str
) -> Section:
    """Percentiles of the good replies of all rounds."""
    series = []
    for row in rows:
        measured = select(result, workload, row.server)
        latencies = sorted(ms for m in measured for ms in m.latencies_ms)
        points = [
            (percentile(latencies, percent), percent) for percent in CURVE_PERCENTS
        ]
        series.append(Series(row.server, points, row.server.startswith("offpath")))
    curve = line_chart(
        series, "ms", "% of replies within", title="How long clients wait", log_x=True
    )
    headers = ["server", *(f"p{percent:g} ms" for percent in PERCENTILES)]
    cells = [[row.server, *map(format_figure, row.latency_ms.values())] for row in rows]
    return Section(f"{workload}: latency", join([curve, table(headers, cells)]))


def make_cost_section(rows: Sequence[Row], workload: str) -> Section:
    """CPU milliseconds a reply by process group, and memory."""
    bars = [
        StackedBar(
            row.server,
            [(name, row.cpu_ms.get(group, 0.0)) for group, name in CPU_GROUPS.items()],
            f"{format_figure(sum(row.cpu_ms.values()))} ms",
        )
        for row in rows
    ]
    colours = assign_colours(CPU_GROUPS.values())
    label = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    body = legend(colours) + stacked_bars(bars, colours, label=label)
    body += make_memory_table(rows)
    note = "Milliseconds of CPU a reply; load is the load generator's own."
    return Section(f"{workload}: CPU and memory", body, note)


def make_memory_table(rows: Sequence[Row]) -> Markup:
    """Memory by process group, and the GPU where there is one."""
    groups = dict.fromkeys(group for row in rows for group in row.rss_bytes)
    has_pss = any(row.pss_bytes for row in rows)
    has_gpu = any(row.gpu for row in rows)
    headers = ["server", *(f"{CPU_GROUPS.get(group, group)} MB" for group in groups)]
    headers += ["all MB", *(["PSS MB"] if has_pss else [])]
    headers += ["GPU %", "GPU MB"] if has_gpu else []
    cells = []
    for row in rows:
        used = [row.rss_bytes.get(group, 0.0) for group in groups]
        used += [sum(used)] + ([sum(row.pss_bytes.values())] if has_pss else [])
        gpu = [
            format_figure(100 * row.gpu.get("utilisation", math.nan)),
            format_figure(row.gpu.get("memory_bytes", math.nan) / 1e6),
        ]
        figures = [f"{count / 1e6:,.0f}" for count in used]
        cells.append([row.server, *figures, *(gpu if has_gpu else [])])
    return table(headers, cells, caption="Memory: resident, by process group")


def make_start_sections(result: BenchResult) -> list[Section]:
    """Cold starts, round by round."""
    rows = [
        [
            start.server,
            str(start.round + 1),
            format_figure(start.ready_s),
            format_figure(start.first_ms),
            "" if start.steady_ms is None else format_figure(start.steady_ms),
        ]
        for start in result.starts
    ]
    if not rows:
        return []
    headers = ["server", "round", "s to the first 200", "first request ms", "steady ms"]
    return [Section("Cold starts", table(headers, rows))]


def make_sweep_sections(
    points: Sequence[SweepPoint], heading: str = "Sweep"
) -> list[Section]:
    """Three charts against the number of virtual users: rate, latency, failures."""
    body = join(
        [
            sweep_chart(points, "rate", "Requests a second", "good replies a second"),
            sweep_chart(points, "p50_ms", "Median latency", "ms", log_y=True),
            sweep_chart(points, "p95_ms", "p95 latency", "ms", log_y=True),
            sweep_chart(points, "failures", "Failed responses", "not 200"),
        ]
    )
    return [Section(heading, body, "Against the number of virtual users.")]


def sweep_chart(
    points: Sequence[SweepPoint],
    what: str,
    title: str,
    y_label: str,
    log_y: bool = False,
) -> Markup:
    """One figure of all servers against users."""
    series = [
        Series(
            server,
            [(p.users, getattr(p, what)) for p in points if p.server == server],
            server.startswith("offpath"),
        )
        for server in dict.fromkeys(point.server for point in points)
    ]
    return line_chart(
        series, "virtual users", y_label, title=title, log_x=True, log_y=log_y
    )
