"""The config.properties that TorchServe is started with.

Precedence, highest first: ServerSettings.overrides; the addresses, models and switches of
ServerSettings; the properties file; TorchServe's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from offpath.serving.process.ports import resolve_ports
from offpath.serving.server.server_settings import (
    CONF_DIR,
    LOOPBACK,
    Ports,
    ServerSettings,
    read_config,
    socket_kinds,
    socket_path,
)

# TorchServe always opens its two gRPC ports. The key does not belong to the certificate, so no
# handshake succeeds (conf/README.md) and the ports are as good as closed.
CLOSED_GRPC = {
    "enable_grpc_ssl": "true",
    "certificate_file": str(CONF_DIR / "grpc-closed.crt"),
    "private_key_file": str(CONF_DIR / "grpc-closed.key"),
}


def choose_grpc_ports(settings: ServerSettings) -> tuple[int, int]:
    """Returns the gRPC ports of inference and management, free ones unless the settings name them.

    TorchServe always opens both. Two servers on its defaults 7070 and 7071 would collide.
    """
    wanted = settings.overrides.get("grpc_inference_port", settings.grpc_port or 0)
    management = settings.overrides.get("grpc_management_port", 0)
    first, second = resolve_ports(LOOPBACK, [int(wanted), int(management)])
    return first, second


def build_properties(
    settings: ServerSettings,
    ports: Ports,
    folder: Path = Path("/tmp"),
    grpc_ports: tuple[int, int] = (0, 0),
) -> dict[str, str]:
    """Returns the effective config.properties of a server with its Unix sockets in `folder`.

    Raises:
        WrongOption: the properties file cannot be read, or names a file that does not exist.
    """
    properties = read_config(settings)
    properties.update(_addresses(settings.host, ports, grpc_ports))
    for kind in socket_kinds(settings):
        properties[f"{kind}_address"] = f"unix:{socket_path(folder, kind)}"
    properties["load_models"] = ",".join(settings.models)
    properties["disable_token_authorization"] = "true"
    is_closed = settings.grpc_port is None and not settings.stock
    if is_closed and not CLOSED_GRPC.keys() & properties.keys():
        properties.update(CLOSED_GRPC)
    properties.update(settings.overrides)
    return properties


def _addresses(host: str, ports: Ports, grpc_ports: tuple[int, int]) -> dict[str, str]:
    return {
        "inference_address": f"http://{host}:{ports.inference}",
        "management_address": f"http://{LOOPBACK}:{ports.management}",
        "metrics_address": f"http://{host}:{ports.metrics}",
        "grpc_inference_address": LOOPBACK,
        "grpc_management_address": LOOPBACK,
        "grpc_inference_port": str(grpc_ports[0]),
        "grpc_management_port": str(grpc_ports[1]),
    }


def format_properties(properties: Mapping[str, str]) -> str:
    # java.util.Properties unescapes backslashes.
    lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in properties.items())
    return "".join(line + "\n" for line in sorted(lines))
