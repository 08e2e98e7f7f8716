"""The command line and the environment that TorchServe's Java is started with."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from offpath.handler.errors import MissingPackage
from offpath.handler.process.foreign_server import MAIN_CLASS
from offpath.serving.torchserve.java import find_java
from offpath.serving.torchserve.server_settings import CONF_DIR, ServerSettings

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
# The path of a Unix socket has at most 108 bytes; a worker's is <tmp>/.ts.sock.9000.
MAX_TMP_PATH_BYTES = 80


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
    if settings.stock or not settings.fork_workers or sys.platform != "linux":
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
    """Returns the folder that holds the `ts` package, without importing it.

    Raises:
        MissingPackage: TorchServe is not installed.
    """
    spec = importlib.util.find_spec("ts")
    if spec is None or spec.origin is None:
        raise MissingPackage("TorchServe", "serve")
    return Path(spec.origin).resolve().parent.parent


def make_short_tmp_dir() -> Path:
    """Makes a temporary folder whose path leaves room for a Unix socket's name."""
    base = tempfile.gettempdir()
    is_short = len(base.encode()) < MAX_TMP_PATH_BYTES
    return Path(tempfile.mkdtemp(prefix="offpath-", dir=base if is_short else "/tmp"))


def remove_folder(folder: Path, keep: str | None = None) -> None:
    """Removes a temporary folder, or everything in it but one entry."""
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.name == keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
