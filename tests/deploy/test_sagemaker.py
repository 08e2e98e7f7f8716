"""`docker run IMAGE serve`: SageMaker's command, with its paths."""

from __future__ import annotations

import base64
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from offpath.serving.client import Client, make_npy
from tests.deploy.containers import read_event_ids, run_container
from tests.support.eventually import eventually
from tests.support.front import load
from tests.support.images import jpeg

pytestmark = [pytest.mark.slow, pytest.mark.server]

PHOTOGRAPH = jpeg(size=(500, 333))


@dataclass
class Endpoint:
    """A running container's worth of processes."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path


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
    command, where = ["serve", "--metrics-port", "0"], {"OFFPATH_MODEL_DIR": str(model)}
    with run_container(command, tmp_path, "SAGEMAKER_BIND_TO_PORT", "/ping", **where) as running:
        process, port = running
        yield Endpoint(process, f"http://127.0.0.1:{port}", tmp_path)


def test_every_kind_of_body_is_answered_at_invocations_until_the_end(endpoint: Endpoint) -> None:
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
    # The end answers what has come, and ships.
    with load(f"{endpoint.url}/invocations", [PHOTOGRAPH], clients=4) as seen:
        eventually(lambda: seen.statuses[200] > 20)
        endpoint.process.terminate()
    assert endpoint.process.wait() == 0
    assert set(seen.statuses) == {200} and not seen.broken
    # Nobody but the command itself has shipped: what read_event_ids would find is there already.
    assert not list((endpoint.folder / "spool").rglob("*.spool"))
    ids = read_event_ids(endpoint.folder)
    assert {ids[i] for i in seen.answered} == {1}
