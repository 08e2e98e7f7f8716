"""`sink.json` in a sink's spool folder: where its segments go, for whoever ships them later.

Never credentials: those come from the AWS default chain of the process that ships.
`last-error.json` beside it says why deliveries fail at present.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.record import format_inference_time
from offpath.handler.prediction_log.segment import read_own_file

SINK_FILE = "sink.json"
ERROR_FILE = "last-error.json"


def write_sink_file(sink_folder: Path, settings: PredictionLogSettings) -> None:
    """Notes the sink; the last to open the log wins, so that a corrected endpoint takes effect."""
    options = dataclasses.asdict(settings.s3)
    content = {"uri": settings.uri, "sync": settings.sync, "s3": options}
    _replace(sink_folder / SINK_FILE, content)


def ensure_sink_file(sink_folder: Path, settings: PredictionLogSettings) -> None:
    """Notes the sink again where the spool was removed in use."""
    if not (sink_folder / SINK_FILE).exists():
        write_sink_file(sink_folder, settings)


def read_sink_file(sink_folder: Path) -> PredictionLogSettings | None:
    """The settings that shipping needs; None where no process got as far as writing them.

    Raises:
        ValueError, OSError: The file is not what `write_sink_file` writes.
    """
    try:
        mapping = _read_object(sink_folder / SINK_FILE)
    except FileNotFoundError:
        return None
    mapping["spool_dir"] = str(sink_folder.parent)
    return PredictionLogSettings.from_mapping(mapping, {})


def write_last_error(sink_folder: Path, kind: str, message: str) -> None:
    """Notes why deliveries fail, for `offpath logs status`."""
    content = {"time": format_inference_time(), "kind": kind, "message": message}
    _replace(sink_folder / ERROR_FILE, content)


def read_last_error(sink_folder: Path) -> dict[str, str] | None:
    """The present trouble, None when the last delivery succeeded.

    Raises:
        ValueError, OSError: The file is not what `write_last_error` writes.
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
        raise ValueError(f"{path} holds no JSON object")
    return content


def clear_last_error(sink_folder: Path) -> None:
    """Deliveries succeed again; a note that cannot be removed is no trouble of theirs."""
    with contextlib.suppress(OSError):
        (sink_folder / ERROR_FILE).unlink()


def _replace(path: Path, content: Mapping[str, object]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(content) + "\n")
    os.replace(new, path)
