from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder

CODE = """
import os, signal
from offpath.serving.process.tmp_folders import make_short_tmp_dir
folder = make_short_tmp_dir()
(folder / "archive").write_bytes(bytes(1000))
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_start_removes_the_folders_of_killed_processes_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp" if len(str(tmp_path)) > 75 else str(tmp_path))
    living = make_short_tmp_dir()
    killed = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    dead = Path(killed.stdout.strip())
    assert dead.is_dir() and dead.parent == living.parent
    logs = living.with_name("offpath-run-kept-logs")
    (logs / "logs").mkdir(parents=True)
    other = make_short_tmp_dir()
    try:
        assert living.is_dir() and (logs / "logs").is_dir() and not dead.exists()
    finally:
        for folder in (living, other, logs):
            remove_folder(folder)
