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
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from offpath.archive.custom_handler import CustomHandler
from offpath.archive.mar_file import LABELS
from offpath.archive.photographs import BUNDLED
from offpath.archive.sources.stock_archive import OldArchive
from offpath.errors import WrongOption

PROGRAM = "from offpath.archive.sources.handler_process import main; main()"
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


@dataclass(frozen=True)
class OldHandler:
    """The handler of an unpacked archive.

    Attributes:
        handler: as TorchServe loads it.
        settings: what it changes of TorchServe's, as `handler:` settings.
        custom: its own postprocess in a handler of ours.
    """

    folder: Path
    handler: str
    settings: dict[str, Any] = field(default_factory=dict)
    custom: CustomHandler | None = None

    def compare(self, new: Path, calibrate: Path | None) -> str:
        """Compares its replies with those of the archive built from it; returns one line.

        Args:
            new: a .mar file. Its labels are written to the old folder: those that classes shared
                are told apart.
            calibrate: a folder of photographs; None for the bundled ones.

        Raises:
            WrongOption: a photograph gets another answer, or its own postprocess answers none.
        """
        folder = self.folder / "compared"
        with zipfile.ZipFile(new) as archive:
            archive.extractall(folder)
        config = folder / "model-config.yaml"
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
        settings["handler"] = {**settings.get("handler", {}), **EXACT}
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        if (folder / LABELS).exists():
            shutil.copyfile(folder / LABELS, self.folder / LABELS)
        files = sorted(path for path in (calibrate or BUNDLED).iterdir() if path.is_file())
        del files[MOST_PHOTOGRAPHS:]
        theirs = _run(self.folder, self.handler, files)
        before = {file: reply for file, (is_answered, reply) in zip(files, theirs) if is_answered}
        if not before:
            reason = f"not compared, because the old handler fails: {theirs[-1][1]}"
            if self.custom is None:
                return reason
            raise WrongOption(
                f"{reason}; pass images like those that clients send: --calibrate FOLDER"
            )
        now = _run(folder, "classifier_entry.py", [*before])
        worst = 0.0
        for (file, old_reply), (_, reply) in zip(before.items(), now):
            worst = max(worst, difference := measure(old_reply, reply))
            if not difference <= MOST_DIFFERENT:
                raise WrongOption(
                    f"the old handler answers {file.name} with {json.dumps(old_reply)[:200]}, and "
                    f"the converted one with {json.dumps(reply)[:200]}; {CURE}"
                )
        return (
            f"compared with the old handler on {len(before)} photographs: the same answers, "
            f"numbers within {worst:.2g}"
        )


def convert_handler(old: OldArchive) -> OldHandler:
    """Converts the handler of an unpacked archive, whose code it runs.

    Raises:
        WrongOption: the handler changes more of TorchServe's than can be converted.
    """
    folder, handler = old.folder, old.handler
    if old.has_stock_handler:
        return OldHandler(folder, handler)
    said = _run(folder, handler)
    if "refused" in said:
        raise WrongOption(f"{handler} cannot be converted: {said['refused']}; {CURE}")
    settings = said["settings"]
    if not said["has_postprocess"]:
        return OldHandler(folder, handler, settings)
    settings["activation"] = "auto"  # for the prediction log; the postprocess gets raw outputs
    text = (folder / f"{Path(handler).stem}.py").read_bytes()
    (folder / FILE).write_bytes(text + f"{SUBCLASS}{said['name']}\n".encode())
    return OldHandler(folder, handler, settings, CustomHandler(folder / FILE, CLASS))


def measure(before: Any, now: Any) -> float:
    """Returns the largest difference between two replies; infinite if they differ in kind.

    Of scores by label, best ones that change places within MOST_DIFFERENT are no difference.
    """
    if isinstance(before, float) and isinstance(now, float):
        return abs(before - now) / max(1.0, abs(before))
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return max(map(measure, before, now), default=0.0)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return 0.0 if before == now else math.inf
    shared: list[float] = [measure(before[key], now[key]) for key in before.keys() & now.keys()]
    if before and all(isinstance(value, float) for value in (*before.values(), *now.values())):
        best = max(before, key=before.__getitem__)
        shared.append(max(now.values(), default=0.0) - now.get(best, -math.inf))
    elif before.keys() != now.keys():
        shared.append(math.inf)
    return max(shared, default=0.0)


def _run(folder: Path, handler: str, files: Sequence[Path] = ()) -> Any:
    """Runs the program; if it fails, each file gets the last line of its errors as a failure."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), handler, *map(str, files)],
        cwd="/",
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1][:200]
    return [(False, reason)] * len(files) if files else {"refused": reason}
