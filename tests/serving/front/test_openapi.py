"""The description of the HTTP interface is valid, complete, and true of the running servers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from offpath.serving.front.openapi import render_openapi
from tests.support.front import FRONTS

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = json.loads(render_openapi())
TOKEN = "a-token-of-the-tests"
CONFIG = """
hooks = "request_bodies"
[parameters]
"path.model" = "near-free"
"path.version" = "1.0"
# A shorter time would be answered 504, which counts as a failure of the server.
"header.x-request-timeout-ms" = "60000"
"""
# A module of schemathesis: real and broken images for the media types that hold one.
REQUEST_BODIES = """
import schemathesis
from hypothesis import strategies as st
from tests.support.images import accepted, rejected

bad = [body for body, *_ in rejected().values() if len(body) < 1_000_000]
bodies = st.sampled_from([*accepted().values(), *bad]) | st.binary(max_size=2000)
for name in ("application/octet-stream", "application/x-npy", "image/*"):
    schemathesis.openapi.media_type(name, bodies)
"""


def test_the_description_is_valid_and_names_the_version() -> None:
    openapi_spec_validator.validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1.")
    version = importlib.metadata.version("torchserve-offpath")
    assert DOCUMENT["info"]["version"] == version


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("run", FRONTS.values(), ids=FRONTS)
def test_a_server_answers_as_described(run: Any, model_store: Path, tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    shutil.copy(model_store / "near-free.mar", store)
    (tokens := tmp_path / "tokens").write_text(TOKEN)
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    (tmp_path / "request_bodies.py").write_text(REQUEST_BODIES)
    options = ["--invocations", "--explanations", "--tokens", str(tokens)]
    with run(store, tmp_path / "logs", *options) as door:
        command = [str(Path(sys.executable).with_name("schemathesis"))]
        command += ["--config-file", str(tmp_path / "schemathesis.toml")]
        command += ["run", f"{door.url}/openapi.json", "--seed", "0"]
        command += ["--header", f"Authorization: Bearer {TOKEN}"]
        # A random text is no image, so the API may refuse what fits the schema.
        command += ["--exclude-checks", "positive_data_acceptance"]
        command += ["--max-examples", "50", "--continue-on-failure"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
            capture_output=True,
            text=True,
            errors="replace",
        )
    # Without the requests, which are whole photographs.
    said = [line for line in done.stdout.splitlines() if "curl -X" not in line]
    assert done.returncode == 0, "\n".join(line[:300] for line in said) + done.stderr
    print("\n".join(said[-12:]))
