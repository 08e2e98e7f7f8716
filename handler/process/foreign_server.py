"""What a server that others started lacks; a worker says it once, `offpath check` with the cure.

A plain `torchserve --start` has neither our metrics file nor our options of Java: everything is
answered, but our metrics are dropped, and megabyte bodies cost four times the CPU in Java.
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
# One that every batch adds to: where it is not declared, none of ours is.
DECLARED_METRIC = "offpath_items_total"
MAIN_CLASS = "org.pytorch.serve.ModelServer"
COLLECTOR = re.compile(r"-XX:\+Use(\w+)GC$")
HEAP = re.compile(r"-Xmx(\w+)$")
# Worker, fork server, launcher, Java.
MOST_ANCESTORS = 6


@dataclass(frozen=True)
class JavaOptions:
    """What TorchServe's Java was started with; None where that is left to Java.

    Attributes:
        collector: `Serial`, `Parallel`, `G1`, ...
        heap: the largest, as `-Xmx` says it.
    """

    collector: str | None
    heap: str | None


def read_java_options(command: Sequence[str]) -> JavaOptions:
    """The options in a command line, the last of a kind counts."""
    collectors = [m.group(1) for word in command if (m := COLLECTOR.match(word))]
    heaps = [m.group(1) for word in command if (m := HEAP.match(word))]
    return JavaOptions(
        collectors[-1] if collectors else None, heaps[-1] if heaps else None
    )


def find_losses(metrics: Any, java: JavaOptions | None) -> list[str]:
    """What this server lacks, a sentence each.

    Args:
        metrics: TorchServe's metrics cache.
        java: None where nobody knows.
    """
    losses = []
    try:
        metrics.get_metric(DECLARED_METRIC)
    except KeyError:  # MetricsCacheKeyError
        losses.append(
            "its metrics file has none of offpath's metrics, so that TorchServe drops them "
            "(metrics_config, or model_metrics_auto_detect=true)"
        )
    if java is not None and java.collector in (None, "G1"):
        losses.append(
            "Java runs with its default collector, which megabyte bodies cost four times the CPU "
            "(vmargs)"
        )
    return losses


def say_losses(metrics: Any) -> None:
    """A warning in the worker's log for each, once in its life."""
    for loss in find_losses(metrics, find_java()):
        logger.warning("this server: %s; `offpath check` prints the line", loss)


def find_java() -> JavaOptions | None:
    """The options of the TorchServe that this process descends from; None where it is not seen."""
    for command in _ancestors():
        if MAIN_CLASS in command:
            return read_java_options(command)
    return None


def _ancestors() -> Iterator[list[str]]:
    pid = os.getppid()
    for _ in range(MOST_ANCESTORS):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # pid (name) state ppid ...; a name may hold anything.
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:  # no /proc, or another container's
            return
        yield command.decode("utf-8", "replace").split("\0")
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 1:
            return
