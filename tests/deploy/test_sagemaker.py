"""`docker run IMAGE serve`: SageMaker's command, with its paths."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from offpath.serving.client import Client, make_npy
from offpath.serving.process.ports import resolve_ports
from tests.support.eventually import eventually
from tests.support.front import load, log_variables, read_event_ids
from tests.support.images import jpeg
from tests.support.monitoring import DEPLOY

pytestmark = [pytest.mark.slow, pytest.mark.server]

SERVE = DEPLOY / "container" / "serve"
PHOTOGRAPH = jpeg(size=(500, 333))


@dataclass
class Endpoint:
    """A running container's worth of processes."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    def is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ping").status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(params=["an archive", "its content"])
def endpoint(
    request: pytest.FixtureRequest, model_store: Path, tmp_path: Path
) -> Iterator[Endpoint]:
    """A container's processes, with the model in the place where SageMaker puts it."""
    model = tmp_path / "model"
    model.mkdir()
    archive = model_store / "near-free.mar"
    if request.param == "an archive":
        (model / archive.name).symlink_to(archive)
    else:
        zipfile.ZipFile(archive).extractall(model)
    (port,) = resolve_ports("0.0.0.0", [0])
    env = {
        **os.environ,
        **log_variables(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OFFPATH_MODEL_DIR": str(model),
        "OFFPATH_LOG_DIR": str(tmp_path / "logs"),
        "SAGEMAKER_BIND_TO_PORT": str(port),
    }
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [SERVE, "--metrics-port", "0"], env=env, stdout=output, stderr=output
        )
    running = Endpoint(process, f"http://127.0.0.1:{port}", tmp_path)
    try:
        eventually(lambda: process.poll() is not None or running.is_healthy())
        assert process.poll() is None, (tmp_path / "output").read_text()
        yield running
    finally:
        process.terminate()
        process.wait()


def test_every_kind_of_body_is_answered_at_invocations(endpoint: Endpoint) -> None:
    text = base64.b64encode(PHOTOGRAPH).decode()
    with httpx.Client(base_url=endpoint.url, timeout=None) as http:

        def ask(kind: str, body: bytes) -> httpx.Response:
            headers = {"content-type": kind}
            return http.post("/invocations", content=body, headers=headers)

        answers = [
            ask("image/jpeg", PHOTOGRAPH),
            ask("application/x-image", PHOTOGRAPH),
            ask("application/x-npy", make_npy(PHOTOGRAPH)),
            ask("application/json", f'{{"data": "{text}"}}'.encode()),
        ]
        refused = ask("image/jpeg", b"no image at all")
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({next(iter(answer.json())) for answer in answers}) == 1
    assert 400 <= refused.status_code < 500
    with Client(endpoint.url) as client:
        assert client.predict(PHOTOGRAPH).labels


def test_the_end_answers_and_ships(endpoint: Endpoint) -> None:
    with load(f"{endpoint.url}/invocations", [PHOTOGRAPH], clients=4) as seen:
        eventually(lambda: seen.statuses[200] > 20)
        endpoint.process.terminate()
    assert endpoint.process.wait() == 0
    assert set(seen.statuses) == {200} and not seen.broken
    # Nobody but the command itself has shipped: what read_event_ids would find is there already.
    assert not list((endpoint.folder / "spool").rglob("*.spool"))
    ids = read_event_ids(endpoint.folder)
    assert {ids[i] for i in seen.answered} == {1}
