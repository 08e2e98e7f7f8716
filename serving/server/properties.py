"""config.properties, which every server reads: parsed and checked once.

The precedence of a model's settings is TorchServe's (`initModelStore` in ModelServer.java,
`createModel` in ModelManager.java, `setModelState` in Model.java): a snapshot wins over an
archive's model-config.yaml, which wins over `models={...}`, which wins over the defaults for all
models.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import MarFile
from offpath.errors import WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import KEYS, RANGES, ServingSettings, is_accepted

CONF_DIR = Path(__file__).resolve().parents[1] / "conf"
# TorchServe's own defaults (ConfigManager.java) for the keys that this project looks at.
DEFAULTS = {
    "inference_address": "http://127.0.0.1:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "max_request_size": "6553500",
    "job_queue_size": "100",
}
# Port of an address that names none (Connector.java).
PORTS = {"inference_address": 80, "management_address": 8081, "metrics_address": 8082}
NUMBERS = (
    *("default_workers_per_model", "default_response_timeout", "default_startup_timeout"),
    *("job_queue_size", "max_request_size"),
)
MAX_INT = 2**31 - 1  # Java's
TOKENS_OFF, SNAPSHOT, MODELS = "disable_token_authorization", "model_snapshot", "models"
# Keys that every server of ours uses. With enable_envvars_config, TS_* of the environment win over
# them, but for the last ones.
VARIABLES = (
    *(*PORTS, *NUMBERS, "load_models", "service_envelope", "decode_input_request"),
    *("metrics_config", TOKENS_OFF),
)
HONOURED = (*VARIABLES, MODELS, SNAPSHOT, "enable_envvars_config")
ADDRESS = re.compile(r"http://([^:/]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
WORKERS = KEYS["min_workers"], KEYS["max_workers"]
# One folder for each GPU.
DRIVER = Path("/proc/driver/nvidia/gpus")

Address = tuple[str, int]
# Name -> version -> settings.
Models = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Properties:
    """A config.properties with TorchServe's defaults for what it does not say.

    Attributes:
        given: the keys of the file, with their values as text.
        default_response_timeout, default_startup_timeout: 0 where the file has none.
        models: the settings in `models={...}`.
        snapshot: those in a snapshot that TorchServe has saved.
    """

    given: Mapping[str, str]
    inference_address: Address
    management_address: Address
    metrics_address: Address
    default_workers_per_model: int
    default_response_timeout: int
    default_startup_timeout: int
    job_queue_size: int
    max_request_size: int
    models: Models
    snapshot: Models

    def list_wanted(self) -> list[str]:
        """Returns the entries of the snapshot or of load_models; empty for all of the store."""
        versions = [(name, one) for name in self.snapshot for one in self.snapshot[name].values()]
        if versions:
            # Paths without a version lead to a model's first archive.
            versions.sort(key=lambda version: not version[1].get("defaultVersion"))
            return [f"{name}={one.get('marName')}" for name, one in versions]
        names = self.given.get("load_models", "")
        return [] if names.lower() == "all" else [name for name in names.split(",") if name]

    def choose_settings(self, archive: MarFile, name: str) -> ServingSettings:
        """Returns the settings in force for an archive that is served under a name."""
        own = archive.model_config or {}
        restored = _list_numbers(self.snapshot, name, archive.model_version)
        if restored:
            return ServingSettings.from_mapping({**own, **restored})
        given = _list_numbers(self.models, name, archive.model_version)
        defaults = {
            KEYS["response_timeout_s"]: self.default_response_timeout,
            KEYS["startup_timeout_s"]: self.default_startup_timeout,
        }
        asked = archive.serving.asked
        wins = {KEYS[one] for one in asked if is_accepted(one, asked[one])}
        if archive.model_config is None:
            given = {key: value for key, value in defaults.items() if value} | given
        else:
            # Such an archive has TorchServe's default of what is not in there.
            wins |= defaults.keys()
        wins = wins | set(WORKERS) if archive.serving.names_workers else wins - set(WORKERS)
        given = {key: value for key, value in given.items() if key not in wins}
        if given.keys() & set(WORKERS):
            default = self.count_default_workers()
            least = given.get(WORKERS[0], default)
            given |= {WORKERS[0]: least, WORKERS[1]: max(least, given.get(WORKERS[1], default))}
        return ServingSettings.from_mapping({**own, **given})

    def count_default_workers(self) -> int:
        """Returns the workers that TorchServe starts for a model whose number is not given."""
        gpus = len(list(DRIVER.glob("*"))) if DRIVER.is_dir() else 0
        return self.default_workers_per_model or gpus or count_cores()


def find_config() -> Path:
    """Returns offpath's config.properties; in a checkout, that at its root."""
    return CONF_DIR.joinpath("config.properties").resolve()


def load_properties(path: Path | None, overrides: Mapping[str, str] | None = None) -> Properties:
    """Reads and checks a properties file, in which paths become absolute.

    Args:
        path: None for TorchServe's defaults.
        overrides: keys that win over those of the file.

    Raises:
        WrongOption: the file cannot be read, names a file that does not exist, has a value of
            another form, or asks for TorchServe's tokens.
    """
    given = {} if path is None else read_properties(path)
    if given.get("enable_envvars_config", "").lower() == "true":
        found = {key: os.environ.get(f"TS_{key.upper()}") for key in VARIABLES}
        given |= {key: value for key, value in found.items() if value is not None}
    if given.get(TOKENS_OFF, "").lower() == "false":
        raise WrongOption(
            f"{path} asks for TorchServe's tokens ({TOKENS_OFF}=false), which `offpath serve` "
            "cannot use; remove that line and use --front --tokens FILE"
        )
    if path is not None and "metrics_config" in given:
        given["metrics_config"] = _resolve_file(given["metrics_config"], path.resolve().parent)
    given |= overrides or {}
    values: dict[str, Any] = {key: _read_address(given, key) for key in PORTS}
    values |= {key: _read_number(given, key, path) for key in NUMBERS}
    models, snapshot = _read_models(given, MODELS), _read_models(given, SNAPSHOT)
    return Properties(given, models=models, snapshot=snapshot, **values)


def _read_number(given: Mapping[str, str], key: str, path: Path | None) -> int:
    if key not in given:
        return int(DEFAULTS.get(key, 0))
    low = 0 if key == "default_workers_per_model" else 1
    if not re.fullmatch("[0-9]{1,10}", given[key]) or not low <= int(given[key]) <= MAX_INT:
        raise WrongOption(
            f"{path or 'config.properties'}: {key} is {given[key]!r:.80}, expected a whole number "
            f"from {low} to {MAX_INT}"
        )
    return int(given[key])


def _read_address(given: Mapping[str, str], key: str) -> Address:
    text = given.get(key, DEFAULTS[key])
    found = ADDRESS.fullmatch(text)
    if found is None or int(found[2] or 0) > 65535:
        raise WrongOption(
            f"config.properties: {key} is {text!r:.80}, expected http://HOST:PORT; TLS is the "
            "front door's (--tls-cert, --tls-key)"
        )
    return found[1], int(found[2] or PORTS[key])


def _read_models(given: Mapping[str, str], key: str) -> Models:
    """Reads `models` or the snapshot."""
    try:
        content = json.loads(given.get(key) or "{}")
        models: Models = content.get("models", {}) if key == SNAPSHOT else content
        if all(isinstance(one, dict) for found in models.values() for one in found.values()):
            return models
    except (ValueError, AttributeError, RecursionError):
        pass
    raise WrongOption(
        f"config.properties: {key} is {given[key]!r:.80}, expected JSON such as "
        '{"NAME": {"1.0": {"minWorkers": 1, ...}}}, in a snapshot under "models"'
    )


def _list_numbers(models: Models, name: str, version: str) -> dict[str, int]:
    """Returns the settings of one version in `models` or in the snapshot."""
    found = models.get(name, {}).get(version, {})
    return {KEYS[one]: found[KEYS[one]] for one in RANGES if is_accepted(one, found.get(KEYS[one]))}


def _resolve_file(value: str, folder: Path) -> str:
    """Finds a file named in a properties file, from that file's folder or in our conf folder."""
    for candidate in (folder / value, CONF_DIR / Path(value).name):
        if candidate.is_file():
            return str(candidate)
    raise WrongOption(
        f"config.properties names {value!r}, which is neither in {folder} nor in {CONF_DIR}"
    )


def parse_properties(text: str) -> dict[str, str]:
    """Parses `key=value` lines; `#` and `!` start comments, a final backslash continues a line.

    This is the part of java.util.Properties that TorchServe's files use: no unicode escapes, and no
    `:` as separator (addresses contain colons, and ts/model_server.py reads only `=`). A snapshot
    that TorchServe has saved escapes colons and line ends.

    Raises:
        WrongOption: a line has no `=`.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise WrongOption(f"line {number}: {line!r} is not key=value")
        properties[key.strip()] = re.sub(
            r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), value.strip()
        )
    return properties


def read_properties(path: Path) -> dict[str, str]:
    """Reads a properties file.

    Raises:
        WrongOption: the file is missing, is not text, or has a line without `=`.
    """
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongOption(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongOption(f"{path} is not UTF-8 text: {error}") from error
    except WrongOption as error:
        raise WrongOption(f"{path}, {error}") from error


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not pending and (not line or line[0] in "#!"):
            continue
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        lines.append((start, pending + line))
        pending = ""
    if pending:
        lines.append((start, pending))
    return lines
