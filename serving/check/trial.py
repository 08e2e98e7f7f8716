"""Runs a custom handler before its archive is served: `python -m offpath.serving.check.trial DIR`.

The handler answers a bundled photograph in a process of its own. The model runs as it is, because
the engine was checked already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.archive.photographs import SAMPLE
from offpath.errors import WrongOption
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE
from offpath.serving.service.archived_handler import ArchivedHandler
from offpath.serving.service.messages import Request

PLAIN = {"engine": "eager", "precision": "fp32", "decode": "scaled", "trace_endpoint": "off"}


def try_handler(path: Path) -> str:
    """Returns a line with the archive's answer to the photograph.

    Raises:
        WrongOption: the handler cannot be loaded, or fails on the photograph.
    """
    archive = read_mar(path)
    with tempfile.TemporaryDirectory(prefix="offpath-trial-") as folder:
        unpack_mar(archive, Path(folder))
        config = dict(archive.model_config or {})
        config["handler"] = {**(config.get("handler") or {}), **PLAIN}
        Path(folder, archive.manifest["model"]["configFile"]).write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [sys.executable, "-m", __name__, folder],
            env={**os.environ, URI_VARIABLE: OFF},
            capture_output=True,
            text=True,
        )
    if done.returncode == 0:
        return f"the handler's answer to {SAMPLE.name}: {done.stdout.strip():.500}"
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    raise WrongOption(f"the handler fails on {SAMPLE.name}, as it would in a worker: {reason}")


if __name__ == "__main__":
    handler = ArchivedHandler(Path(sys.argv[1]))
    (reply,) = handler.handle([Request(SAMPLE.read_bytes(), "trial", {})])
    print(reply.status, reply.body.decode())
    # A handler may refuse the photograph, but not with a bug.
    sys.exit(reply.status >= 500)
