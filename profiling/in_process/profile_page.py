"""Writes a profile as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.experiments.server_figures import list_doubts
from offpath.profiling.experiments.server_sections import make_server_sections
from offpath.profiling.in_process.profile_result import ProfileResult
from offpath.profiling.in_process.profile_sections import (
    make_file_sections,
    make_function_sections,
    make_line_sections,
    make_stage_sections,
)
from offpath.profiling.report.old_page import render_page, write_html

TITLES = {
    "stages": "Where a batch's time goes, by stage",
    "cprofile": "Where the time goes, by function",
    "lines": "Where the time goes, by line",
    "flame": "Where the time goes, by call stack",
    "server": "Where a client's latency goes, from its socket to the model",
}


def write_page(result: ProfileResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    write_html(make_page(result), path)


def make_page(result: ProfileResult) -> str:
    """The whole page as text."""
    names = ", ".join(profile.name for profile in result.handlers)
    return render_page(
        f"{TITLES.get(result.kind, result.kind)}: {names}",
        [
            *make_server_sections(result.handlers),
            *make_stage_sections(result.handlers),
            *make_function_sections(result.handlers),
            *make_line_sections(result.handlers),
            *make_file_sections(result.handlers),
        ],
        command=result.command,
        facts=list_facts(result),
        details=list_details(result),
        warnings=list_doubts(result.handlers),
    )


def list_facts(result: ProfileResult) -> dict[str, str]:
    """When, where and on what, name by name; what is not known is left out."""
    facts = {
        "taken": format_time(result.started_at),
        "host": describe_host(result.host),
        "photographs": describe_workload(result.workload),
    }
    return {name: text for name, text in facts.items() if text}


def list_details(result: ProfileResult) -> dict[str, str]:
    """Versions and settings, of the run and of each handler."""
    details = {
        "versions": describe_versions(result.host),
        "settings": describe_settings(result.settings),
        **{p.name: describe_settings(p.settings) for p in result.handlers},
    }
    return {name: text for name, text in details.items() if text}
