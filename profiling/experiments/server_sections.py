"""What `offpath profile server` adds to a page: the account of a client's latency.

The account's lines add up to the client's mean (see `profiling.server_profile`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from offpath.profiling.core.figures import format_figure, format_ms, format_share
from offpath.profiling.experiments.server_figures import list_account, list_server_facts
from offpath.profiling.in_process.profile_result import HandlerProfile
from offpath.profiling.report.old_page import (
    Section,
    Span,
    StackedBar,
    assign_colours,
    histograms,
    join,
    legend,
    stacked_bars,
    table,
    waterfall,
)


def make_server_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """Account, waterfall, latencies and counters of the handlers that were served."""
    served = [profile for profile in handlers if profile.server.get("account")]
    if not served:
        return []
    bars = [make_account_bar(profile) for profile in served]
    colours = assign_colours(part for bar in bars for part, _ in bar.parts)
    label = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    falls = [waterfall(list_spans(p, colours), caption=p.name) for p in served]
    return [
        Section(
            "A client's mean latency",
            legend(colours) + stacked_bars(bars, colours, label=label),
            "From the client's socket to the model, part by part.",
        ),
        Section(
            "The same as a waterfall", join(falls), "Means, in the order of the path."
        ),
        Section(
            "The account", tables_of(served), "The lines add up to the client's mean."
        ),
        *make_latency_sections(served),
        Section("What the server counted", facts_of(served)),
    ]


def make_account_bar(profile: HandlerProfile) -> StackedBar:
    """One server's account as a bar."""
    parts = [(part, ms) for part, _, ms, _ in list_account(profile.server)]
    return StackedBar(
        profile.name, parts, f"{format_figure(profile.server['mean_ms'])} ms"
    )


def list_spans(profile: HandlerProfile, colours: Mapping[str, str]) -> list[Span]:
    """The account's lines end to end; below-zero ones have no length."""
    spans, start_ms = [], 0.0
    for part, _, ms, _ in list_account(profile.server):
        length_ms = max(0.0, ms)
        spans.append(
            Span(part, start_ms, length_ms, f"{format_ms(ms / 1e3)} ms", colours[part])
        )
        start_ms += length_ms
    return spans


def tables_of(served: Sequence[HandlerProfile]) -> Markup:
    """A table of the account per server."""
    return Markup("\n").join(
        table(
            ["part", "where", "ms", "share"],
            [
                *(
                    [part, where, format_ms(ms / 1e3), format_share(share)]
                    for part, where, ms, share in list_account(profile.server)
                ),
                ["total", "client", format_figure(profile.server["mean_ms"]), "100 %"],
            ],
            left=2,
            caption=profile.name,
            total_row=True,
        )
        for profile in served
    )


def make_latency_sections(served: Sequence[HandlerProfile]) -> list[Section]:
    """Histograms of the clients' latencies."""
    values = {
        p.name: p.server.get("client", {}).get("latencies_ms", []) for p in served
    }
    charts = histograms(values, "ms a request", "requests")
    note = "Dashed lines: p50, p95, p99."
    return [Section("How long clients wait", join(charts), note)] if charts else []


def facts_of(served: Sequence[HandlerProfile]) -> Markup:
    """A table of counters per server."""
    return Markup("\n").join(
        table(
            ["name", "value"],
            list_server_facts(profile.server),
            left=2,
            caption=profile.name,
        )
        for profile in served
    )
