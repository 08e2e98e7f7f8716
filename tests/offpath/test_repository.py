"""The files for contributors and releases agree with setup.cfg and with the scripts."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
VERSION = SETUP["metadata"]["version"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def list_steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = read(str(workflow))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_scripts_that_exist_and_actions_of_a_version(workflow: Path) -> None:
    for step in list_steps(workflow):
        if "run" in step:
            script = ROOT / step["run"].split()[0]
            assert script.is_file() and script.stat().st_mode & 0o111, script
        else:
            pattern = r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})"
            assert re.fullmatch(pattern, step["uses"]), step
    # A job asks for more only by itself.
    assert read(str(workflow))["permissions"] == {"contents": "read"}
