"""A sink's folder in the spool: its name, `sink.json` and `last-error.json`.

`sink.json` stores where the segments go, for any process that ships them later. It never holds
credentials: those come from the AWS default chain of the process that ships. `last-error.json`
stores why deliveries currently fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.record import format_inference_time
from offpath.handler.prediction_log.segment import read_own_file

SINK_FILE = "sink.json"
ERROR_FILE = "last-error.json"


def make_sink_folder_name(uri: str) -> str:
    """Returns a legible folder name that differs for different URIs."""
    digest = hashlib.sha256(uri.encode()).hexdigest()[:8]
    legible = re.sub(r"[^A-Za-z0-9.]+", "-", uri).strip("-")[:60]
    return f"{legible}-{digest}"


def write_sink_file(sink_folder: Path, settings: PredictionLogSettings) -> None:
    """Stores the sink. The last process to open the log wins, so a corrected endpoint is used."""
    options = dataclasses.asdict(settings.s3)
    content = {"uri": settings.uri, "sync": settings.sync, "s3": options}
    _replace(sink_folder / SINK_FILE, content)


def read_sink_file(sink_folder: Path) -> PredictionLogSettings | None:
    """Reads the settings that shipping needs; None if no process has stored them.

    Raises:
        ValueError, OSError: The file was not written by `write_sink_file`.
    """
    try:
        mapping = _read_object(sink_folder / SINK_FILE)
    except FileNotFoundError:
        return None
    mapping["spool_dir"] = str(sink_folder.parent)
    return PredictionLogSettings.from_mapping(mapping, {})


def write_last_error(sink_folder: Path, kind: str, message: str) -> None:
    """Stores why deliveries fail, for `offpath logs status`."""
    content = {"time": format_inference_time(), "kind": kind, "message": message}
    _replace(sink_folder / ERROR_FILE, content)


def read_last_error(sink_folder: Path) -> dict[str, str] | None:
    """Reads why deliveries fail; None if the last delivery succeeded.

    Raises:
        ValueError, OSError: The file was not written by `write_last_error`.
    """
    try:
        content = _read_object(sink_folder / ERROR_FILE)
    except FileNotFoundError:
        return None
    return {str(key): str(value) for key, value in content.items()}


def _read_object(path: Path) -> dict[str, object]:
    data = read_own_file(path)
    try:
        content = json.loads(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def clear_last_error(sink_folder: Path) -> None:
    """Removes the stored error after a delivery; a failure to remove it is ignored."""
    with contextlib.suppress(OSError):
        (sink_folder / ERROR_FILE).unlink()


def _replace(path: Path, content: Mapping[str, object]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(content) + "\n")
    os.replace(new, path)
