"""The container's and the service's files, as far as this machine can read them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from offpath.commands.serve import command as serve
from offpath.serving.front import nginx
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.server import server
from tests.support.answering_server import answering_server
from tests.support.certificates import write_certificate
from tests.support.monitoring import DEPLOY

CONTAINER = DEPLOY / "container"
UNIT = DEPLOY / "systemd" / "offpath.service"
ROOT = DEPLOY.parent
HEALTH_CHECK = CONTAINER / "healthcheck"
# How long an end may take: the drain, and then TorchServe and nginx.
END_S = sum(
    [
        DoorSettings().drain_s,
        *(nginx.SHUTDOWN_SLACK_S, server.STOP_TIMEOUT_S, nginx.STOP_TIMEOUT_S),
    ]
)


def read_containerfile() -> str:
    return (CONTAINER / "Containerfile").read_text()


def test_what_is_started_are_options_of_offpath_serve() -> None:
    known = {option for param in serve.params for option in param.opts}
    in_container = read_containerfile().partition('CMD ["offpath"')[2]
    (in_unit,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    for text in (in_container.partition("]")[0], in_unit):
        options = set(re.findall(r"--[a-z][a-z-]+", text))
        assert options and options <= known


def test_compose_mounts_what_is_there_and_opens_ports_to_this_host_alone() -> None:
    services = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            if volume.startswith(".."):
                assert (CONTAINER / volume.split(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    target = services["offpath"]["build"]["target"]
    assert f"AS {target}\n" in read_containerfile()


def need_systemd() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: apt install systemd brings it")


def test_the_unit_exposes_little_of_the_host() -> None:
    need_systemd()
    # The score is 0 (nothing exposed) to 100 here; 10 times what is printed.
    subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=29", UNIT],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    need_systemd()
    # systemd-analyze checks that the program exists.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/offpath/bin/offpath", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # `offpath serve` tells systemd when it is READY (tests/serving/process/test_notify.py).
    assert "\nType=notify\n" in unit.read_text()


def test_an_end_is_given_the_time_that_it_may_take() -> None:
    compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    in_compose = compose["services"]["offpath"]["stop_grace_period"]
    (in_unit,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    (in_guide,) = re.findall(r"--stop-timeout (\d+)", (ROOT / "docs" / "clouds.md").read_text())
    assert min(int(in_compose.removesuffix("s")), int(in_unit), int(in_guide)) > END_S


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_the_health_check_asks_a_door_with_and_without_tls(
    is_encrypted: bool, tmp_path: Path
) -> None:
    with answering_server(write_certificate(tmp_path) if is_encrypted else None) as door:
        port = int(door.url.rpartition(":")[2])
        assert check_health(port) == 0
    assert check_health(port) == 1


def check_health(port: int) -> int:
    # A proxy of the container must not be asked for its own port.
    environment = {"SAGEMAKER_BIND_TO_PORT": str(port), "http_proxy": "http://[::1]:9"}
    return subprocess.run(
        [sys.executable, HEALTH_CHECK], env={**os.environ, **environment}
    ).returncode
