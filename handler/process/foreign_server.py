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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
# Every batch adds to this metric. A server that does not declare it declares none of offpath's.
DECLARED_METRIC = "offpath_items_total"
MAIN_CLASS = "org.pytorch.serve.ModelServer"
COLLECTOR = re.compile(r"-XX:\+Use(\w+)GC$")
HEAP = re.compile(r"-Xmx(\w+)$")
REGION_SIZE = "-XX:G1HeapRegionSize"
# Worker, fork server, launcher, Java.
MOST_ANCESTORS = 6


@dataclass(frozen=True)
class JavaOptions:
    """Java options that TorchServe was started with; None where Java decides.

    Attributes:
        collector: garbage collector: `Serial`, `Parallel`, `G1`, ...
        heap: largest heap, as given to `-Xmx`.
        has_region_size: the size of G1's regions is set.
    """

    collector: str | None
    heap: str | None
    has_region_size: bool = False


@dataclass(frozen=True)
class Loss:
    """A setting of the server that works but gives something away.

    Attributes:
        subject: what the setting is about, as `offpath check` lists it.
        found: what the server does, and the cost.
        key: the key of config.properties to set.
    """

    subject: str
    found: str
    key: str


def read_java_options(command: Sequence[str]) -> JavaOptions:
    """Reads the options in a command line; the last option of a kind wins."""
    collectors = [m.group(1) for word in command if (m := COLLECTOR.match(word))]
    heaps = [m.group(1) for word in command if (m := HEAP.match(word))]
    return JavaOptions(
        collectors[-1] if collectors else None,
        heaps[-1] if heaps else None,
        any(word.startswith(REGION_SIZE) for word in command),
    )


def find_collector_loss(java: JavaOptions) -> Loss | None:
    """Returns the cost of G1, Java's default; None for another collector or larger regions."""
    if java.collector not in (None, "G1") or java.has_region_size:
        return None
    name = java.collector or "Java's default (G1)"
    found = f"{name} takes four times the CPU with megabyte bodies"
    return Loss("collector", found, "vmargs")


def find_metrics_loss(is_declared: bool, source: str) -> Loss | None:
    """Returns the loss of offpath's metrics; None where the server declares them.

    Args:
        is_declared: the server's metrics file has `DECLARED_METRIC`.
        source: the metrics file, or what stands in for it, named in the message.
    """
    if is_declared:
        return None
    found = f"{source} does not declare offpath's metrics, so TorchServe drops them"
    return Loss("our metrics", found, "metrics_config")


def declares(metrics: Any, name: str) -> bool:
    """Tells whether the server around this worker declares a metric, given its metrics cache."""
    try:
        metrics.get_metric(name)
    except KeyError:  # MetricsCacheKeyError
        return False
    return True


def find_losses(metrics: Any, java: JavaOptions | None) -> list[Loss]:
    """Returns what the server around this worker gives away.

    Args:
        java: options of the server's Java; None if its process cannot be seen.
    """
    losses = [find_metrics_loss(declares(metrics, DECLARED_METRIC), "the metrics file")]
    if java is not None:
        losses.append(find_collector_loss(java))
    return [loss for loss in losses if loss is not None]


def warn_of_losses(metrics: Any) -> None:
    """Logs a warning for each loss; called once in a worker's life."""
    for loss in find_losses(metrics, read_parent_java()):
        logger.warning(
            "this server: %s (%s); `offpath check` prints the line to copy",
            loss.found,
            loss.key,
        )


def read_parent_java() -> JavaOptions | None:
    """Returns the options of the TorchServe that started this process; None if not visible."""
    for command in _ancestors():
        if MAIN_CLASS in command:
            return read_java_options(command)
    return None


def _ancestors() -> Iterator[list[str]]:
    pid = os.getppid()
    for _ in range(MOST_ANCESTORS):
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
