"""Tries an archive with code of its user: `python -m offpath.serving.check.trial FOLDER`.

The archive answers a bundled photograph in a process of its own, which has neither this user's
downloads nor, without a custom handler, a network: a worker may have none of them, and a model's
file may read others beside it. The model runs as it is, because the engine was checked already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import yaml

from offpath.archive.mar_file import OUR_MARK, read_mar, unpack_mar
from offpath.archive.no_network import network_refused
from offpath.archive.photographs import SAMPLE
from offpath.errors import WrongOption
from offpath.handler.contract import Request
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE
from offpath.serving.service.archived_classifier import ENTRY_FILE, load_classifier, load_entry

PLAIN = {"engine": "eager", "precision": "fp32", "decode": "scaled", "trace_endpoint": "off"}


# OSError, ImportError and the subclasses of them that a missing file causes.
FILE_ERROR = re.compile(r"(File|Module)NotFound|Import|OS|NotADirectory|IsADirectory")
# Where this user's downloads lie, which other hosts lack.
NO_CACHES = {"TORCH_HOME": "none", "HF_HOME": "none", "HF_HUB_OFFLINE": "1"}


def try_archive(path: Path) -> str:
    """Returns a line with the archive's answer to the photograph.

    Raises:
        WrongOption: the archive cannot be loaded, or fails on the photograph.
    """
    archive = read_mar(path)
    with tempfile.TemporaryDirectory(prefix="offpath-trial-") as folder:
        unpack_mar(archive, Path(folder))
        config = dict(archive.model_config or {})
        config["handler"] = {**(config.get("handler") or {}), **PLAIN}
        Path(folder, archive.manifest["model"]["configFile"]).write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [sys.executable, "-m", __name__, folder],
            env={**os.environ, **NO_CACHES, URI_VARIABLE: OFF},
            capture_output=True,
            text=True,
        )
    if done.returncode == 0:
        return f"the handler's answer to {SAMPLE.name}: {done.stdout.strip():.500}"
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    cure = (
        "; add the files that its code reads with --extra-file and open them beside __file__, and "
        "pass a Hugging Face folder as --model FOLDER"
    )
    raise WrongOption(
        f"the archive fails on {SAMPLE.name}, as it would in a worker: {reason}"
        f"{cure if FILE_ERROR.match(reason) else ''}"
    )


if __name__ == "__main__":
    unpacked = Path(sys.argv[1])
    # A handler may ask a service when it is loaded; a model has its weights in the archive.
    with nullcontext() if (unpacked / OUR_MARK).is_file() else network_refused():
        if hasattr(load_entry(unpacked / ENTRY_FILE).BASE, "handle"):
            print("not asked, because only TorchServe calls `handle`")
            sys.exit(0)
        classifier = load_classifier(unpacked)
    (reply,) = classifier.classify([Request(SAMPLE.read_bytes(), "trial")])
    print(reply.status, reply.body.decode())
    # A handler may refuse the photograph, but not with a bug.
    sys.exit(reply.status >= 500)
