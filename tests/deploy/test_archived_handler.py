"""The archive's handler outside TorchServe, in a process that has only the unpacked archive."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from offpath.deploy.exportable import unpack
from offpath.serving.service.messages import make_event_id
from offpath.serving.torchserve.server import TorchServe
from tests.support.photographs import PHOTOGRAPHS, encode

# Answers the files of its command line as one batch, and prints what it saw.
PROGRAM = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder / "service"))
from offpath.serving.service.archived_handler import ArchivedHandler
from offpath.serving.service.messages import Request

class Sums:
    sums = {}
    def __init__(self, name, labels, is_counter):
        self.name, self.is_counter = name, is_counter
    def add(self, labels, value):
        assert labels["ModelName"]
        key = " ".join([self.name, *list(labels.values())[1:]])
        Sums.sums[key] = value + (Sums.sums.get(key, 0) if self.is_counter else 0)

handler = ArchivedHandler(folder / "archive", make_metric=Sums)
bodies = [Path(path).read_bytes() for path in sys.argv[2:]]
answers = handler.handle([Request(b, f"id-{n}") for n, b in enumerate(bodies)])
handler.close()
import offpath.handler
print(json.dumps({
    "answers": [[a.status, dict(a.headers), a.body.decode()] for a in answers],
    "metrics": Sums.sums, "described": handler.describe(),
    "handler": offpath.handler.__file__,
}))
"""


@pytest.fixture(scope="module")
def folder(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "1"
    unpack(model_store / "near-free.mar", folder, folder / "service")
    return folder


def run(folder: Path, files: list[Path], log: Path, program: str = PROGRAM):
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *map(str, files)],
        cwd="/",
        env={
            "OFFPATH_PREDICTION_LOG": f"file://{log}",
            "OFFPATH_SPOOL_DIR": str(log.with_name("spool")),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # Outside TorchServe the handler does not ask for TorchServe's metrics file.
    assert "offpath check" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read_records(log: Path) -> list[dict]:
    return [
        json.loads(line)
        for path in log.glob("dt=*/hour=*/*.jsonl.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


@pytest.mark.server
def test_answers_are_torchserves_own_and_each_is_in_the_log_once(
    folder: Path, server: TorchServe, tmp_path: Path
) -> None:
    files = []
    for number, photograph in enumerate(PHOTOGRAPHS[:7]):
        files.append(tmp_path / f"{number}.jpg")
        files[-1].write_bytes(encode(photograph.rgb, "JPEG", quality=90))
    files.append(tmp_path / "bad")
    files[-1].write_bytes(b"no image")
    seen = run(folder, files, tmp_path / "log")
    url = f"{server.inference_url}/predictions/near-free"
    for (status, headers, body), file in zip(seen["answers"], files):
        reply = httpx.post(url, content=file.read_bytes())
        assert status == reply.status_code
        if status == 200:
            # Sums of a batch of eight and of one differ in their last digits.
            assert list(json.loads(body)) == list(reply.json())
            assert json.loads(body) == pytest.approx(reply.json(), abs=1e-6)
        else:
            assert body == reply.text
        assert headers["content-type"] == "application/json"
        assert "decode" in headers["Server-Timing"]
    assert [status for status, _, _ in seen["answers"]] == [200] * 7 + [415]
    assert seen["described"]["max_batch"] >= 8
    assert seen["handler"].startswith(str(folder))
    assert seen["metrics"]["offpath_items_total"] == 8
    assert seen["metrics"]["offpath_errors_total UnsupportedFormat"] == 1
    logged = [record["event_id"] for record in read_records(tmp_path / "log")]
    assert sorted(logged) == [f"id-{number}" for number in range(8)]


@pytest.mark.parametrize("given", ["", "1", "a~", "a b", "x" * 65])
def test_two_requests_with_one_id_have_two_records(given: str) -> None:
    first, second = make_event_id(given), make_event_id(given)
    assert first != second and "~" not in first
    assert first.startswith(given) == (given in ("", "1"))
