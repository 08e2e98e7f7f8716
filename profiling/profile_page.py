"""Writes a profile as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.figures import format_bytes
from profiling.page import render_page, write_html
from profiling.profile_result import ProfileResult
from profiling.profile_sections import (
    make_file_sections,
    make_function_sections,
    make_line_sections,
    make_stage_sections,
)
from profiling.server_figures import list_doubts
from profiling.server_sections import make_server_sections

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
        warnings=list_doubts(result.handlers),
    )


def list_facts(result: ProfileResult) -> dict[str, str]:
    """When, where and on what, name by name; what is not known is left out."""
    facts = {
        "taken": format_time(result.started_at),
        "host": describe_host(result.host),
        "versions": describe_versions(result.host),
        "photographs": describe_workload(result.workload),
        "settings": describe_settings(result.settings),
    }
    facts |= {p.name: describe_settings(p.settings) for p in result.handlers}
    return {name: text for name, text in facts.items() if text}


def format_time(started_at: str) -> str:
    """RFC 3339 as people write it, to the second."""
    return started_at.replace("T", " ").replace("+00:00", " UTC")


def describe_host(host: Mapping[str, Any]) -> str:
    """Processor, cores, memory, system, accelerator."""
    parts = [
        host.get("cpu"),
        f"{host['cores']} cores" if "cores" in host else None,
        f"{host['memory_gib']} GiB" if "memory_gib" in host else None,
        host.get("system"),
        host.get("gpu"),
    ]
    return ", ".join(str(part) for part in parts if part)


def describe_versions(host: Mapping[str, Any]) -> str:
    """Python's, Java's, our own and the packages' versions."""
    versions = {
        "Python": host.get("python"),
        "Java": host.get("java"),
        "offpath": host.get("offpath"),
        **host.get("packages", {}),
    }
    return ", ".join(f"{name} {text}" for name, text in versions.items() if text)


def describe_workload(workload: Mapping[str, Any]) -> str:
    """The photographs in words; empty without any."""
    if not workload:
        return ""
    mean = workload.get("mean_bytes")
    size = f" of {format_bytes(mean)} mean" if mean else ""
    return f"{workload.get('name', '?')}: {workload.get('count', '?')}{size}"


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Everything that was chosen, `name value` by name."""
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in settings.items()
        if value not in (None, "", {}, [])
    )
