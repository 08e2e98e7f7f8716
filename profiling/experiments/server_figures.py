"""Reads what `profiling.server_profile` made, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from offpath.profiling.core.figures import format_bytes, format_figure, format_share
from offpath.profiling.in_process.profile_result import HandlerProfile


def list_doubts(handlers: Sequence[HandlerProfile]) -> list[str]:
    """What makes the servers' figures less certain, as sentences."""
    return [
        f"{profile.name}: {doubt}"
        for profile in handlers
        for doubt in profile.server.get("doubts", [])
    ]


def list_account(server: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """(part, where, ms, share of the client's mean), in the order of the path."""
    mean_ms = server.get("mean_ms") or 0.0
    return [
        (row["part"], row["where"], row["ms"], row["ms"] / mean_ms if mean_ms else 0.0)
        for row in server.get("account", [])
    ]


def list_server_facts(server: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The server's other figures as (name, text); what was not measured is left out."""
    client, counters = server.get("client", {}), server.get("counters", {})
    elapsed_s = client.get("elapsed_s")
    facts = {
        "clients": client.get("clients"),
        "replies": client.get("replies"),
        "failures": client.get("failures"),
        "replies a second": client["replies"] / elapsed_s if elapsed_s else None,
        "mean ms": server.get("mean_ms"),
        "batches": counters.get("batches") or counters.get("prediction_batches"),
        "mean batch size": server.get("mean_batch_size"),
        **{
            f"CPU ms a request, {group}": value
            for group, value in server.get("cpu_ms_per_request", {}).items()
        },
        **{
            f"in force: {name}": value
            for name, value in server.get("in_force", {}).items()
        },
        **list_gpu_figures(server.get("gpu") or {}),
    }
    return [
        (name, format_value(value))
        for name, value in facts.items()
        if isinstance(value, (int, float, str))
    ]


def list_gpu_figures(gpu: Mapping[str, Any]) -> dict[str, Any]:
    """Mean utilisation and largest memory of each device (see `profiling.gpu.GpuSamples`)."""
    figures: dict[str, Any] = {"GPU": gpu.get("absent")}
    for device in gpu.get("devices", []):
        readings = [
            r for r in gpu.get("readings", []) if r["device"] == device["index"]
        ]
        busy = [r["utilisation"] for r in readings if r["utilisation"] is not None]
        name = f"GPU {device['index']}, {device['name']}"
        if busy:
            figures[f"{name}: utilisation"] = format_share(fmean(busy))
        if readings:
            used = max(r["memory_used_bytes"] for r in readings)
            figures[f"{name}: memory"] = format_bytes(used)
    return figures


def format_value(value: float | int | str) -> str:
    """A whole number with thousands separators, others with three digits."""
    if isinstance(value, float) and not value.is_integer():
        return format_figure(value)
    return f"{value:,.0f}" if isinstance(value, (int, float)) else value
