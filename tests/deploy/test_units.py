"""The container's and the service's files, as far as this machine can read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from offpath.commands.serve import command as serve
from tests.support.monitoring import DEPLOY

CONTAINER = DEPLOY / "container"
UNIT = DEPLOY / "systemd" / "offpath.service"
ROOT = DEPLOY.parent


def read_containerfile() -> str:
    return (CONTAINER / "Containerfile").read_text()


def test_the_containerfile_has_both_targets_no_root_and_a_health_check() -> None:
    text = read_containerfile()
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    assert stages[-2:] == ["cuda", "cpu"]
    final = text[text.index("AS base\n") :]
    assert re.search(r"^ARG RUN_AS=offpath\nUSER \$RUN_AS$", final, re.MULTILINE)
    assert "USER root" not in final and "HEALTHCHECK" in final


def test_the_containerfile_copies_what_is_there() -> None:
    for line in re.findall(r"^COPY ([^-].*) \S+$", read_containerfile(), re.MULTILINE):
        for name in line.split():
            assert name.endswith("model-store/") or (ROOT / name).exists(), name


def list_serve_options(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def test_what_is_started_are_options_of_offpath_serve() -> None:
    known = {option for param in serve.params for option in param.opts}
    in_container = read_containerfile().partition('CMD ["offpath"')[2]
    (in_unit,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    for text in (in_container.partition("]")[0], in_unit):
        assert list_serve_options(text) and list_serve_options(text) <= known


def test_compose_mounts_what_is_there_and_opens_ports_to_this_host_alone() -> None:
    services = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            if volume.startswith(".."):
                assert (CONTAINER / volume.split(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    target = services["offpath"]["build"]["target"]
    assert f"AS {target}\n" in read_containerfile()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    # It looks whether the program is there.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/offpath/bin/offpath", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
