from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.server.plan import plan_server
from offpath.serving.server.server_settings import Ports, ServerSettings
from offpath.serving.torchserve.launch import build_properties
from tests.guarantees import guarantee

PORTS = Ports(1, 2, 3)
SETTINGS = ServerSettings(Path("store"), ("a.mar", "b=c.mar"))


def build(folder: Path = Path("/tmp"), **changes: object) -> dict[str, str]:
    """Returns the properties of a server with no archives."""
    settings = replace(SETTINGS, **changes)  # type: ignore
    plan = plan_server(replace(settings, models=()))
    return build_properties(replace(plan, settings=settings), PORTS, folder)


@guarantee(
    "Settings that would open something",
    "config.properties",
    "enable_model_api=false",
    "enable_model_api=true",
)
def test_our_config_listens_on_loopback_with_a_closed_store() -> None:
    properties = build()
    assert properties["inference_address"] == "http://127.0.0.1:1"
    assert properties["grpc_management_address"] == "127.0.0.1"
    assert properties["load_models"] == "a.mar,b=c.mar"
    assert properties["enable_model_api"] == "false"
    assert "http" not in properties["allowed_urls"]


@guarantee(
    "Ports open to strangers",
    "serving/server/server_settings.py",
    ('return (*metrics, "management") if settings.management_port is None ' "else metrics"),
    "return metrics",
)
def test_management_is_a_socket_unless_a_port_is_asked_for() -> None:
    properties = build(Path("/run/own"))
    assert properties["management_address"] == "unix:/run/own/management.sock"


def test_metrics_config_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "my.properties"
    config.write_text("metrics_config=nowhere.yaml\n")
    with pytest.raises(ExpectedError, match="nowhere.yaml"):
        build(config=config)


def test_other_host_leaves_management_on_loopback() -> None:
    properties = build(host="10.0.0.1", management_port=2)
    assert properties["inference_address"] == "http://10.0.0.1:1"
    assert properties["management_address"] == "http://127.0.0.1:2"
    assert properties["grpc_inference_address"] == "127.0.0.1"
