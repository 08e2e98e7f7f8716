"""The files for contributors and releases agree with setup.cfg and with the scripts."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
VERSION = SETUP["metadata"]["version"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_every_file_that_names_the_version_names_the_same() -> None:
    chart, citation = read("deploy/kubernetes/Chart.yaml"), read("CITATION.cff")
    assert chart["version"] == chart["appVersion"] == citation["version"] == VERSION
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.search(rf"^## \[{re.escape(VERSION)}\] - (\S+)$", changes, re.MULTILINE)
    # Before the first release there is one section without a version, and no date to cite.
    assert released or "\n## [Unreleased]\n" in changes
    assert citation.get("date-released") == (released and released[1])
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = re.findall(
        r"torchserve_offpath-([\d.]+)-py3",
        "".join(page.read_text("utf-8") for page in pages),
    )
    assert set(named) == {VERSION}
