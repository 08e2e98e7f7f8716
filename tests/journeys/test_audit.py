"""scripts/audit.sh, in an environment that the scripts have made; asks PyPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"


def test_the_audit_lists_what_is_installed_with_hashes_and_licences() -> None:
    if not Path(sys.prefix, ".offpath-serve,bench,dev").exists():
        pytest.skip("this environment was not made by scripts/test.sh")
    done = subprocess.run(
        [str(ROOT / "scripts" / "audit.sh")],
        env={**os.environ, "OFFPATH_VENV": sys.prefix},
        capture_output=True,
        text=True,
    )

    last = done.stderr.splitlines()[-1]
    assert done.returncode in (0, 1, 2), done.stderr
    assert (done.returncode == 2) == last.startswith("pip-audit could not look up")
    components = json.loads((BUILD / "sbom.json").read_text())["components"]
    versions = {one["name"]: one["version"] for one in components}
    pins = (BUILD / "requirements.txt").read_text()
    assert versions["torchserve"] == "0.12.0" and "torch" in versions
    assert "torchserve==0.12.0 \\\n    --hash=sha256:" in pins
    licences = (BUILD / "licences.md").read_text()
    assert len(licences.splitlines()) > 100
    # What is linked into a server is none of these.
    assert "AGPL" not in licences and "GPL-3" not in licences
