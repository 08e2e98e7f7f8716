"""Settings of a server started without `offpath serve` that cost speed or drop offpath's metrics.

A plain `torchserve --start` has neither offpath's metrics file nor its Java options. It answers
every request, but drops offpath's metrics, and megabyte bodies cost four times the CPU in Java.
The worker warns about both once; `offpath check` reports them with the line that cures them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
# Every batch adds to this metric. A server that does not declare it declares none of offpath's.
DECLARED_METRIC = "offpath_items_total"
METRICS_LOSS = "{} does not declare offpath's metrics, so TorchServe drops them"
MAIN_CLASS = "org.pytorch.serve.ModelServer"
COLLECTOR = r"-XX:\+Use(\w+)GC"
HEAP = r"-Xmx(\w+)"
REGION_SIZE = r"-XX:G1HeapRegionSize(.+)"
# Worker, fork server, launcher, Java.
MAX_ANCESTORS = 6


def read_java_option(pattern: str, command: Sequence[str]) -> str | None:
    """Returns the value of a Java option, of which the last in a command line wins."""
    values = [match[1] for word in command if (match := re.fullmatch(pattern, word))]
    return values[-1] if values else None


def find_collector_loss(command: Sequence[str]) -> str | None:
    """Returns the cost of G1, Java's default; None for another collector or larger regions."""
    collector = read_java_option(COLLECTOR, command)
    if collector not in (None, "G1") or read_java_option(REGION_SIZE, command):
        return None
    name = collector or "Java's default (G1)"
    return f"{name} takes four times the CPU with megabyte bodies"


def declares(metrics: Any, name: str) -> bool:
    """Tells whether the server around this worker declares a metric, given its metrics cache."""
    try:
        metrics.get_metric(name)
    except KeyError:  # MetricsCacheKeyError
        return False
    return True


def warn_of_losses(metrics: Any) -> None:
    """Logs a warning for each setting that gives something away; called once in a worker's life.

    The options of a Java whose process cannot be seen are not judged.
    """
    losses: dict[str, str | None] = {}
    if not declares(metrics, DECLARED_METRIC):
        losses["metrics_config"] = METRICS_LOSS.format("the metrics file")
    java = next((command for command in _ancestors() if MAIN_CLASS in command), None)
    if java is not None:
        losses["vmargs"] = find_collector_loss(java)
    for key, found in losses.items():
        if found is not None:
            text = "this server: %s (%s); `offpath check` prints the line to copy"
            logger.warning(text, found, key)


def _ancestors() -> Iterator[list[str]]:
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # pid (name) state ppid ...; the name may contain spaces and parentheses.
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:  # no /proc, or the process is in another container
            return
        yield command.decode("utf-8", "replace").split("\0")
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 1:
            return
