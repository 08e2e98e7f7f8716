"""Reads and writes config.properties.

Precedence, highest first: ServerSettings.overrides; the addresses, models and switches of
ServerSettings; the properties file; TorchServe's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from offpath.handler.errors import ExpectedError, WrongOption

# TorchServe's own defaults (ConfigManager.java) for the keys that this project looks at.
DEFAULTS = {
    "inference_address": "http://127.0.0.1:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "max_request_size": "6553500",
    "job_queue_size": "100",
}


def parse_properties(text: str) -> dict[str, str]:
    """Parses `key=value` lines; `#` and `!` start comments, a final backslash continues a line.

    This is the part of java.util.Properties that TorchServe's files use: no unicode escapes, and no
    `:` as separator (addresses contain colons, and ts/model_server.py reads only `=`).

    Raises:
        WrongOption: a line has no `=`.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise WrongOption(f"line {number}: {line!r} is not key=value")
        properties[key.strip()] = value.strip()
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
    except ExpectedError as error:
        raise WrongOption(f"{path}, {error}") from error


def format_properties(properties: Mapping[str, str]) -> str:
    # java.util.Properties unescapes backslashes.
    lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in properties.items())
    return "".join(line + "\n" for line in sorted(lines))


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
