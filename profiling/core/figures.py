"""The form of figures in tables and pages: three significant digits, never more."""

from __future__ import annotations

import math


def format_figure(value: float) -> str:
    """Formats three significant digits with separators: 0.0123, 1.23, 12.3, 123, 12,345."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    # Rounded first, because 0.9999 has as many decimals as 1.
    value = float(f"{value:.3g}") if abs(value) < 1e3 else value
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def format_ms(ms: float | None) -> str:
    """Formats milliseconds without the unit, no finer than a microsecond; empty for None."""
    if ms is None:
        return ""
    return f"{ms:.3f}" if 0 < abs(ms) < 0.1 else format_figure(ms)


def format_share(share: float) -> str:
    """Formats a share as percent, with one decimal below 10 %."""
    if not math.isfinite(share):
        return "-"
    percent = 100 * share
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %"


def format_bytes(count: float) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
