"""Each example in examples/ runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# Parts of what an example prints; those without a line classify photographs and a damaged file.
EXPECTED = {
    "defects": ['"defects":["hole","scratch"]', "UndecodableImage"],
    "migration": ["requests per second", "torchserve-stock"],
}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    "script", sorted(EXAMPLES.glob("*/run.sh")), ids=lambda path: path.parent.name
)
def test_an_example_runs_with_one_command(script: Path) -> None:
    done = subprocess.run([script], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = EXPECTED.get(script.parent.name, ["espresso", "UndecodableImage"])
    assert all(part in done.stdout for part in expected)
