"""A small file for `offpath reload`: which process serves, how its last reload went."""

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
class FrontState:
    """What it holds.

    Attributes:
        pid: process of `offpath serve`.
        reloads: how many have ended, well or not.
        failure: why the last one did not; None: it did.
    """

    pid: int
    reloads: int = 0
    failure: str | None = None

    def write(self, folder: Path) -> None:
        """Replaces the file in a folder of logs."""
        new = folder / f"{STATE_FILE}.new"
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(folder / STATE_FILE)


def read_state(folder: Path) -> FrontState:
    """Reads the file.

    Raises:
        ExpectedError: no front door writes its logs there.
    """
    try:
        return FrontState(**json.loads((folder / STATE_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ExpectedError(
            f"no `offpath serve --front` has its logs in {folder} ({error}); "
            "name its --log-dir or --port"
        ) from error


def request_reload(folder: Path, timeout_s: float) -> None:
    """Has a running front door replace its server, and waits for it.

    Raises:
        ExpectedError: none runs, the new server was not let in, or the time is up.
    """
    before = read_state(folder)
    try:
        os.kill(before.pid, signal.SIGHUP)
    except (ProcessLookupError, PermissionError) as error:
        raise ExpectedError(
            f"cannot reach process {before.pid} of {folder / STATE_FILE}: {error}"
        ) from error
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = read_state(folder)
        if now.pid != before.pid or not Path(f"/proc/{before.pid}").exists():
            raise ExpectedError("`offpath serve` ended during the reload")
        if now.reloads > before.reloads:
            if now.failure is not None:
                raise ExpectedError(f"the old server goes on: {now.failure}")
            return
        time.sleep(POLL_S)
    raise ExpectedError(f"the reload has not ended after {timeout_s:.0f} s")
