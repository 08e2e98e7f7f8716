"""The facts under a report's title: when and where a result was taken, with which versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offpath.profiling.core.figures import format_bytes


def format_time(started_at: str) -> str:
    return started_at.replace("T", " ").replace("+00:00", " UTC")


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
    name = f"{workload['name']}: " if "name" in workload else ""
    return f"{name}{workload.get('count', '?')} photographs{size}"


def describe_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value}"
        for name, value in settings.items()
        if value not in (None, "", {}, [])
    )
