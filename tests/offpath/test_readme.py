"""The measured figures of README.md and docs/results.md are those of the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_figure_is_that_of_its_result() -> None:
    command = [sys.executable, ROOT / "scripts" / "figures.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
