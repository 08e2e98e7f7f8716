"""The profiler's end of a handler's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from offpath.profiling.core.child_process import ChildProcess


class HandlerProcess(ChildProcess):
    """A context manager; the process is gone when the block ends, however it ends.

    Args:
        name: of the handler, for messages.
        environ: added to this process's own.
        log_file: takes what the handler prints.
    """

    def __init__(self, name: str, environ: Mapping[str, str], log_file: Path) -> None:
        super().__init__(
            "offpath.profiling.in_process.profile_child",
            f"handler {name!r}",
            environ,
            log_file,
        )
