"""Loads an archive's model where nothing but the archive is, before a worker tries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from offpath.errors import WrongOption

# What the worker does in `_load_pickled_model`, without TorchServe.
PROGRAM = """
import importlib, inspect, sys
from offpath.handler.model.weights import make_with_weights
module = importlib.import_module(sys.argv[1])
own = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
make_with_weights(own[0], sys.argv[2])
"""
# OSError, ImportError and the subclasses of them that a missing file causes.
FILE_ERROR = re.compile(r"(File|Module)NotFound|Import|OS|NotADirectory|IsADirectory")


def check_loads_alone(archive: Path, model_file: str, weights_file: str) -> None:
    """Makes the model in a fresh process, in a folder that holds nothing but the archive.

    A model file may read files or folders beside it. The builder's process finds them, and a worker
    does not.

    Raises:
        WrongOption: the model cannot be made there.
    """
    with tempfile.TemporaryDirectory(prefix="offpath-alone-") as folder:
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
        # As TorchServe does, the archive's folder comes before the user's PYTHONPATH.
        path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, Path(model_file).stem, weights_file],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
        )
    if done.returncode == 0:
        return
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    is_file = FILE_ERROR.match(reason)
    cure = (
        "add the files that its code reads with --extra-file and open them beside __file__, and "
        "pass a Hugging Face folder as --model FOLDER"
        if is_file
        else "a worker would fail in the same way, because it imports the model's file alone"
    )
    raise WrongOption(
        f"the model can be made here, but not from the archive alone: {reason}; {cure}"
    )
