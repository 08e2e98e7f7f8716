"""A full disk is named in the message of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.handler.prediction_log.conftest import mount_tmpfs  # noqa: F401

ROOT = Path(__file__).parents[2]
ARCHIVE = ("archive", "--model", "near-free", "--output", "store")


@pytest.mark.parametrize("full", ["temporary", "output"])
def test_a_full_disk_is_named_without_a_temporary_file(
    mount_tmpfs: Callable[..., Path], full: str  # noqa: F811
) -> None:
    disk = mount_tmpfs("size=200k")
    command = [sys.executable, "-m", "offpath", *ARCHIVE]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if full == "temporary":
        env["TMPDIR"] = str(disk)
    else:
        command[-1] = str(disk)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2) and str(disk) in last and "No space left" in last
    assert "offpath-archive-" not in last and "Traceback" not in done.stderr
