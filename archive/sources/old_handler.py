"""Converts an archive's own handler, and compares a converted archive with the one it came from.

The archive's code runs in processes of its own (`handler_process.py`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from offpath.archive.custom_handler import CustomHandler
from offpath.archive.mar_file import LABELS, read_mar, unpack_mar
from offpath.archive.photographs import BUNDLED
from offpath.archive.sources.stock_archive import OldArchive
from offpath.errors import WrongOption

PROGRAM = "offpath.archive.sources.handler_process"
MOST_PHOTOGRAPHS = 16
# The largest difference of a probability, and of larger numbers relative to them.
MOST_DIFFERENT = 0.01
CURE = (
    "serve the archive as it is (offpath serve --server granian), or write what its handler does as"
    " a subclass and pass --handler FILE.py (docs/your-handler.md)"
)
FILE = "offpath_converted.py"
CLASS = "OffpathConverted"
SUBCLASS = f"""

# Written by `offpath archive --from`.
from offpath.handler.converted_handler import ConvertedClassifier  # noqa: E402


class {CLASS}(ConvertedClassifier):
    theirs = """
# The engine and the scaled decode are checked by the parity gate.
EXACT = {"decode": "exact", "engine": "eager", "precision": "fp32", "trace_endpoint": "off"}
ENVIRONMENT = {
    "OFFPATH_PREDICTION_LOG": "off",
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile takes minutes and changes no answer
}


def convert_handler(old: OldArchive) -> tuple[dict[str, Any], CustomHandler | None]:
    """Runs the code of an unpacked archive's handler, and converts what it changes of TorchServe's.

    Returns:
        The `handler:` settings, empty for TorchServe's own handler; and a handler of ours with its
        own postprocess, if it has one.

    Raises:
        WrongOption: the handler changes more than can be converted.
    """
    folder, handler = old.folder, old.handler
    if old.has_stock_handler:
        return {}, None
    try:
        found = _run(folder, handler)
    except WrongOption as error:
        raise WrongOption(f"{handler} cannot be converted: {error}; {CURE}") from error
    settings: dict[str, Any] = found["settings"]
    if not found["has_postprocess"]:
        return settings, None
    settings["activation"] = "auto"  # for the prediction log; the postprocess gets raw outputs
    text = (folder / f"{Path(handler).stem}.py").read_bytes()
    (folder / FILE).write_bytes(text + f"{SUBCLASS}{found['name']}\n".encode())
    return settings, CustomHandler(folder / FILE, CLASS)


def compare_replies(
    old: OldArchive, custom: CustomHandler | None, calibrate: Path | None, new: Path
) -> str:
    """Compares replies to photographs with those of the archive built from the old one.

    Args:
        old: its labels are replaced by those of `new`, in which those that classes share are told
            apart.
        custom: its own postprocess.
        calibrate: a folder of photographs; None for the bundled ones.
        new: a .mar file.

    Returns:
        One line on what was compared.

    Raises:
        WrongOption: a photograph gets another answer, or its own postprocess answers none.
    """
    archive, folder = read_mar(new), old.folder / "compared"
    unpack_mar(archive, folder)
    config = archive.model_config or {}
    exact = {**config, "handler": {**config.get("handler", {}), **EXACT}}
    (folder / "model-config.yaml").write_text(yaml.safe_dump(exact), encoding="utf-8")
    if LABELS in archive.names:
        shutil.copyfile(folder / LABELS, old.folder / LABELS)
    files = sorted(filter(is_image, (calibrate or BUNDLED).iterdir()))[:MOST_PHOTOGRAPHS]
    try:
        before = _run(old.folder, old.handler, files)
    except WrongOption as error:
        reason = f"not compared, because the old handler fails: {error}"
        if custom is None:
            return reason
        raise WrongOption(
            f"{reason}; pass images like those that clients send: --calibrate FOLDER"
        ) from error
    for file, old_reply, reply in zip(files, before, _run(folder, "classifier_entry.py", files)):
        if not is_same(old_reply, reply):
            raise WrongOption(
                f"the old handler answers {file.name} with {json.dumps(old_reply)[:200]}, and "
                f"the converted one with {json.dumps(reply)[:200]}; {CURE}"
            )
    return f"compared with the old handler on {len(files)} photographs: the same answers"


def is_image(path: Path) -> bool:
    """Tells images from the notes and label files beside them."""
    try:
        Image.open(path).close()
    except OSError:
        return False
    return True


def is_same(before: Any, now: Any) -> bool:
    """Compares two replies: numbers within MOST_DIFFERENT, and all else equal.

    Scores by label need not have the same labels. Their best label is the same, or as good.
    """
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=MOST_DIFFERENT, abs_tol=MOST_DIFFERENT)
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return all(map(is_same, before, now))
    if not isinstance(before, dict) or not isinstance(now, dict):
        return bool(before == now)
    if before and all(isinstance(value, float) for value in (*before.values(), *now.values())):
        best = max(before, key=before.__getitem__)
        if not is_same(now.get(best, -math.inf), max(now.values(), default=0.0)):
            return False
    elif before.keys() != now.keys():
        return False
    return all(is_same(before[key], now[key]) for key in before.keys() & now.keys())


def _run(folder: Path, handler: str, files: Sequence[Path] = ()) -> Any:
    """Runs the program; if it fails, raises WrongOption with the last line of its errors."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, str(folder), handler, *map(str, files)],
        cwd="/",
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    raise WrongOption(reason.removeprefix("offpath.errors.WrongOption: ")[:200])
