"""Converts an archive's own handler, and compares its scores with those of the new handler.

The archive's code runs in processes of its own (`handler_process.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from offpath.archive.handler_file import HandlerFile
from offpath.archive.photograph_sets import decode_photograph
from offpath.archive.photographs import BUNDLED
from offpath.archive.sources.stock_archive import OldArchive
from offpath.archive.sources.transforms import DERIVED
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines.eager import EagerEngine
from offpath.handler.model.engines.engine import FOLDER
from offpath.handler.model.outputs import activate
from offpath.handler.model.parity import load_parity_set, measure_parity

PROGRAM = "offpath.archive.sources.handler_process"
MAX_PHOTOGRAPHS = 16
LIMIT_S = 600.0
MAX_RESULT_BYTES = 1 << 24
MAX_ERROR_BYTES = 4096
# The largest difference of a probability.
MAX_DIFFERENT = 0.01
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
WRONG_OPTION = "offpath.errors.WrongOption: "
ENVIRONMENT = {
    "OFFPATH_PREDICTION_LOG": "off",
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile takes minutes and changes no answer
}


def convert_handler(old: OldArchive) -> tuple[dict[str, Any], HandlerFile | None]:
    """Runs the code of an unpacked archive's handler, and converts what it changes of TorchServe's.

    Returns:
        The `handler:` settings, empty for TorchServe's own handler; and a handler of ours with its
        own postprocess, if it has one.

    Raises:
        WrongOption: the handler changes more than can be converted.
    """
    folder, handler = old.folder, old.handler
    if old.ours is not None:
        file, _, name = handler.partition(":")
        return old.ours, HandlerFile(folder / file, name) if name else None
    if old.has_stock_handler:
        return {}, None
    try:
        found = _run(folder, handler)
        if not str(found["name"]).isidentifier():
            raise WrongOption(f"its class is called {found['name']!r:.80}")
    except (WrongOption, TypeError, KeyError) as error:
        raise WrongOption(f"{handler} cannot be converted: {error}; {CURE}") from error
    # The process may say anything, because the archive's code runs in it.
    settings = {key: value for key, value in found["settings"].items() if key in DERIVED}
    if not found["has_postprocess"]:
        return settings, None
    settings["activation"] = "auto"  # for the prediction log; the postprocess gets raw outputs
    text = (folder / f"{Path(handler).stem}.py").read_bytes()
    (folder / FILE).write_bytes(text + f"{SUBCLASS}{found['name']}\n".encode())
    return settings, HandlerFile(folder / FILE, CLASS)


def compare_scores(
    old: OldArchive,
    custom: HandlerFile | None,
    calibrate: Path | None,
    model: torch.nn.Module,
    config: HandlerConfig,
) -> str:
    """Compares the scores of photographs with those of the old handler.

    What an engine or the scaled decode change is not seen here: the parity gate checks that.

    Args:
        custom: its own postprocess, which gets raw outputs; the old handler's process tries it.
        calibrate: a folder of photographs; None for the bundled ones.
        model: returns raw outputs.
        config: the settings of the new handler.

    Returns:
        One line on what was compared.

    Raises:
        WrongOption: the old handler fails on all photographs, or gives one other scores.
    """
    if old.ours is not None:
        return _compare_answers(old, model, config)
    files = sorted(path for path in (calibrate or BUNDLED).iterdir() if path.is_file())
    del files[MAX_PHOTOGRAPHS:]
    try:
        found = [*_run(old.folder, old.handler, files)]
    except (WrongOption, TypeError) as error:
        found = [str(error)]
    # A file on which the old handler fails has an error's text; there are notes among images.
    before = {
        file: torch.tensor(one)
        for file, one in zip(files, found)
        if type(one) is list and {float} == {*map(type, one)}
    }
    if not before:
        raise WrongOption(
            f"the old handler fails on photographs: {found[-1]}; pass images like those that "
            f"clients send (--calibrate FOLDER), or {CURE}"
        )
    exact = replace(config, decode="exact")
    engine = EagerEngine(model, exact, torch.device("cpu"))
    for file, theirs in before.items():
        image = torch.tensor(decode_photograph(file.read_bytes(), exact))
        with torch.inference_mode():
            outputs = engine(image[None]).float()
        ours = activate(outputs, "softmax" if custom else config.activation)[0]
        if theirs.shape != ours.shape:
            raise WrongOption(
                f"the old handler gives {file.name} scores of {len(theirs)} classes, and the model "
                f"has {len(ours)}; {CURE}"
            )
        # Two best classes may change places if they are as good.
        worse, moved = theirs.max() - theirs[ours.argmax()], (ours - theirs).abs().max()
        if worse > MAX_DIFFERENT or not moved <= MAX_DIFFERENT:
            raise WrongOption(
                f"the old handler gives {file.name} class {theirs.argmax()} with probability "
                f"{theirs.max():.3f}, the converted one class {ours.argmax()} with "
                f"{ours.max():.3f}; {CURE}"
            )
    return f"compared with the old handler on {len(before)} photographs: the same scores"


def _compare_answers(old: OldArchive, model: torch.nn.Module, config: HandlerConfig) -> str:
    """Compares the answers with those that an archive of ours holds for its parity gate."""
    reference = None
    with contextlib.suppress(ConfigError):  # an earlier version stored them in another way
        reference = load_parity_set(old.folder / FOLDER, config)
    if reference is None:
        return "not compared: the old archive holds no photographs with answers, or unreadable ones"
    cpu = torch.device("cpu")
    parity = measure_parity(EagerEngine(model, config, cpu), reference, config, cpu)
    if not parity.holds(config.parity_bound):
        raise WrongOption(
            f"the model answers {parity.images} photographs otherwise than the old archive does: "
            f"it moves a probability by {parity.largest_move:.3f}; build the archive from its model"
        )
    return f"compared with the old archive on {parity.images} photographs: the same answers"


def _run(folder: Path, handler: str, files: Sequence[Path] = ()) -> Any:
    """Runs the program, and returns its JSON, in which the archive's code may have put anything.

    Raises:
        WrongOption: the program fails, with the last line of its errors, or takes too long.
    """
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # Files, because a process that the archive's code leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(folder), handler, *map(str, files)],
            cwd="/",
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise WrongOption(f"its code still runs after {LIMIT_S:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
        reason = errors.read().decode(errors="replace").strip() or f"exit status {status}"
        out.seek(0)
        result = out.read(MAX_RESULT_BYTES)
    with contextlib.suppress(ValueError, RecursionError):
        if status == 0:
            return json.loads(result)
        raise WrongOption(reason.splitlines()[-1].removeprefix(WRONG_OPTION)[:200])
    raise WrongOption("it ends without the result that it was asked for")
