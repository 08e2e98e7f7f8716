"""The archive's handler outside TorchServe, in a process that has only the unpacked archive."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from offpath.deploy.exportable import ARCHIVED_DECODER, unpack
from offpath.serving.shell.archived_handler import make_event_id
from offpath.serving.torchserve.server import TorchServe
from tests.support.photographs import PHOTOGRAPHS, encode

# Answers the files of its command line as one batch, and prints what it saw.
PROGRAM = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
from archived_handler import ArchivedHandler, Request

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
    unpack(model_store / "near-free.mar", folder)
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
    files[-1].write_bytes(b"no picture")
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


# Decodes the files of its command line in two tiers, and asks to explain the first.
TWO_TIERS = """
import json, sys
from dataclasses import replace
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
from archived_decoder import ArchivedDecoder
from archived_handler import Answer, ArchivedHandler, Request

decoder, handler = ArchivedDecoder(folder / "archive"), ArchivedHandler(folder / "archive")
answers = []
for number, path in enumerate(sys.argv[2:]):
    body = Path(path).read_bytes()
    made = decoder.decode(Request(body, f"id-{number}"))
    if not isinstance(made, Answer):
        made = handler.handle([Request(made, f"id-{number}")])[0]
    direct = handler.handle([Request(body, f"direct-{number}")])[0]
    answers.append([[one.status, dict(one.headers), one.body.decode()] for one in (made, direct)])
field = b'--x\\r\\nContent-Disposition: form-data; name="%s"\\r\\n\\r\\n%s\\r\\n'
picture = Path(sys.argv[2]).read_bytes()
form = field % (b"target", b"3") + field % (b"data", picture) + b"--x--\\r\\n"
headers = {"explain": "True", "content-type": "multipart/form-data; boundary=x"}
asked = Request(form, "id-explained", headers)
direct = handler.handle([asked])[0]
picture = decoder.decode(asked)
explained = handler.handle([replace(asked, body=picture)])[0]
decoder.close()
handler.close()
print(json.dumps({
    "answers": answers, "target": picture.target,
    "explained": [direct.status, explained.status],
    "sizes": [len(direct.body), len(explained.body)],
}))
"""


def test_two_tiers_answer_as_one_and_each_record_is_written_once(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copy(ARCHIVED_DECODER, folder)
    good, bad = tmp_path / "0.jpg", tmp_path / "bad"
    good.write_bytes(encode(PHOTOGRAPHS[0].rgb, "JPEG", quality=90))
    bad.write_bytes(b"no picture")
    seen = run(folder, [good, bad], tmp_path / "log", TWO_TIERS)
    ((status, headers, body), direct), (refused, refused_direct) = seen["answers"]
    assert status == direct[0] == 200
    assert json.loads(body) == pytest.approx(json.loads(direct[2]), abs=1e-6)
    timing = dict(one.strip().split(";dur=") for one in headers["Server-Timing"].split(","))
    assert float(timing["decode"]) > 0 and float(timing["inference"]) > 0
    assert (refused[0], refused[2]) == (415, refused_direct[2])
    assert "decode" in refused[1]["Server-Timing"]
    # The second explanation comes too soon; its id is in the log already.
    assert (seen["target"], seen["explained"]) == ("3", [200, 429])
    records = {one["event_id"]: one for one in read_records(tmp_path / "log")}
    assert {name: one["status"] for name, one in records.items()} == {
        "id-0": 200,
        "direct-0": 200,
        "id-1": 415,
        "direct-1": 415,
        "id-explained": 200,
    }
    for field in ("payload_bytes", "payload_hash"):
        assert records["id-0"][field] == records["direct-0"][field]
    # The record has the times of both tiers.
    stage_ms = records["id-0"]["stage_ms"]
    assert stage_ms["decode"] == pytest.approx(float(timing["decode"]), abs=0.0051)
    assert stage_ms["inference"] > 0
