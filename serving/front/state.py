"""The file front.json, by which `offpath reload` finds the server and learns how a reload ended."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from offpath.handler.errors import ExpectedError

STATE_FILE = "front.json"
POLL_S = 0.1


@dataclass(frozen=True)
class DoorState:
    """Content of the file.

    Attributes:
        pid: process of `offpath serve`.
        reloads: number of reloads that have ended, with success or not.
        failure: why the last reload failed; None if it succeeded.
    """

    pid: int
    reloads: int = 0
    failure: str | None = None

    def write(self, folder: Path) -> None:
        """Writes the file to a folder of logs."""
        new = folder / f"{STATE_FILE}.new"
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(folder / STATE_FILE)


def read_state(folder: Path) -> DoorState:
    """Reads the file.

    Raises:
        ExpectedError: no front door writes its logs to this folder.
    """
    try:
        return DoorState(**json.loads((folder / STATE_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        raise ExpectedError(
            f"no `offpath serve --front` writes its logs to {folder}{reason}; "
            "name the server's --port or --log-dir"
        ) from error


def request_reload(folder: Path, timeout_s: float) -> None:
    """Has a running front door replace its server, and waits until it has.

    Raises:
        ExpectedError: no door runs, the new server was not let in, or the time is up.
    """
    before = read_state(folder)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except (ProcessLookupError, PermissionError) as error:
        raise ExpectedError(
            f"cannot reach process {before.pid}, which {folder / STATE_FILE} names ({error}); "
            "is `offpath serve --front` still running?"
        ) from error
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = read_state(folder)
        if now.pid != before.pid or not Path(f"/proc/{before.pid}").exists():
            raise ExpectedError("`offpath serve` ended during the reload")
        if now.reloads > before.reloads:
            if now.failure is not None:
                raise ExpectedError(
                    f"the new server did not start, the old server continues: {now.failure}"
                )
            return
        time.sleep(POLL_S)
    raise ExpectedError(
        f"the reload has not ended after {timeout_s:.0f} s; it goes on without this command"
    )
