"""A server's /metrics page as numbers: one `Snapshot` each time it is read.

The parser adds `_total` to the names of counters, unless the page has no types, as that of Granian.
So a name is compared without this end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from offpath.errors import ExpectedError

TIMEOUT_S = 30.0
TOTAL = "_total"


@dataclass(frozen=True)
class Snapshot:
    """All lines of the page."""

    series: tuple[Sample, ...]

    def total(self, name: str, **labels: str) -> float:
        """Sums up the lines of this name with these labels; 0 without any."""
        return sum(self.by_label(name, "", **labels).values())

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums up by the values of one label, in the page's order."""
        sums: dict[str, float] = defaultdict(float)
        for line in self.series:
            is_named = line.name.removesuffix(TOTAL) == name.removesuffix(TOTAL)
            if is_named and labels.items() <= line.labels.items():
                sums[line.labels.get(label, "")] += line.value
        return sums


def parse_metrics(text: str) -> Snapshot:
    """Parses the Prometheus text format (version 0.0.4); raises ExpectedError for any other."""
    try:
        families = text_string_to_metric_families(text)
        series = tuple(sample for family in families for sample in family.samples)
    except (ValueError, IndexError, KeyError) as error:
        raise ExpectedError(
            f"the metrics page is not in Prometheus' text format: {error};"
            f" it begins {text[:80]!r}"
        ) from error
    return Snapshot(series)


def read_metrics(url: str) -> Snapshot:
    """Fetches and parses a page; raises ExpectedError where nothing usable answers."""
    try:
        # trust_env: no proxy before loopback.
        reply = httpx.get(url, timeout=TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExpectedError(
            f"no metrics at {url!r}: {error}; expected a running server's"
            " http://HOST:PORT/metrics, see --metrics-url"
        ) from error
    if reply.status_code != 200:
        raise ExpectedError(
            f"{url!r} answered {reply.status_code} instead of metrics; see --metrics-url"
        )
    return parse_metrics(reply.text)
