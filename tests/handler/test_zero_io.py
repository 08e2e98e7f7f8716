"""After the warm-up a request opens no file, connects nowhere and starts no process.

The classifier is loaded as Granian's worker does. tests/serving/contract/test_doors.py traces both
servers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.images import jpeg

# Runs in a separate process, because an audit hook cannot be removed.
PROGRAM = """
import json, sys, threading
from pathlib import Path
from offpath.handler.contract import Request
from offpath.serving.granian.metric_sums import MetricSums
from offpath.serving.service.archived_classifier import load_classifier

archive, folder = map(Path, sys.argv[1:])
classifier = load_classifier(archive, 8, publish=MetricSums().publish)
bodies = [path.read_bytes() for path in sorted(folder.iterdir())]
requests = [Request(body, f"request-{number}") for number, body in enumerate(bodies)]
assert classifier.classify(requests)[0].status == 200
# These cost each worker seconds and megabytes. Only explanations and other engines need them.
heavy = {"captum", "torch._dynamo", "openvino.torch", "onnxruntime", "ts"} & set(sys.modules)
assert not heavy, heavy
events = []
watching = False
handler_thread = threading.get_ident()
WATCHED = ("open", "socket.", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir",
           "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "shutil.",
           "tempfile.", "import")

def watch(event, arguments):
    if watching and threading.get_ident() == handler_thread and event.startswith(WATCHED):
        events.append(f"{event} {arguments}"[:200])

sys.addaudithook(watch)
watching = True
for _ in range(25):
    classifier.classify(requests)  # 8 requests
found = list(events)
open("/dev/null").close()
watching = False
print(json.dumps([found, events]))
classifier.close()
"""


def test_200_requests_write_only_to_an_open_segment(
    model_store: Path,
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFPATH_PREDICTION_LOG", (tmp_path / "log").as_uri())
    monkeypatch.setenv("OFFPATH_SPOOL_DIR", str(tmp_path / "spool"))
    with zipfile.ZipFile(model_store / "near-free.mar") as file:
        file.extractall(tmp_path / "archive")
    bodies = [files[name] for name in ("jpeg", "png", "webp", "gif", "tiff", "bmp")]
    bodies += [jpeg(size=(2048, 1365)), b"not an image"]
    (tmp_path / "bodies").mkdir()
    for number, body in enumerate(bodies):
        (tmp_path / "bodies" / f"{number}").write_bytes(body)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "archive", tmp_path / "bodies"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    found, with_planted = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == []
    # The watch sees a file that is opened.
    assert len(with_planted) == 1 and "/dev/null" in with_planted[0]
