"""After the warm-up a request opens no file, connects nowhere and starts no process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.handler.loaded_service import WORKERS

# Runs in a separate process, because an audit hook cannot be removed.
PROGRAM = """
import json, sys, threading
from tests.handler.loaded_service import WORKERS

load, make_batch, predict = WORKERS[{server!r}]
service = load({mar!r}, {environ!r})
rows = make_batch()
predict(service, rows)  # a first batch, for what `initialize` cannot warm up
events = []
watching = False
# ts/metrics/caching_metric.py reads the host's name (uname, no socket) once per batch.
ALLOWED = ("socket.gethostname",)
handler_thread = threading.get_ident()
WATCHED = ("open", "socket.", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir",
           "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "shutil.",
           "tempfile.", "import")

def watch(event, arguments):
    if not watching or threading.get_ident() != handler_thread or event in ALLOWED:
        return
    if event.startswith(WATCHED):
        events.append(f"{{event}} {{arguments}}"[:200])

sys.addaudithook(watch)
watching = True
for _ in range(25):
    predict(service, rows)  # 8 requests
found = list(events)
for _ in range(25):
    open("/dev/null").close()
    predict(service, rows)
watching = False
print(json.dumps([found, events]))
"""


def watched_events(server: str, mar: Path, environ: dict[str, str] | None = None) -> list[str]:
    """Returns the events of 200 requests, after checking that the watch sees a file opened."""
    program = PROGRAM.format(server=server, mar=str(mar), environ=environ or {})
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found, with_planted = json.loads(done.stdout.strip().splitlines()[-1])
    assert sum("/dev/null" in event for event in with_planted) == 25
    return list(found)


@pytest.mark.parametrize("server", ["torchserve", pytest.param("granian", marks=pytest.mark.slow)])
def test_200_requests_touch_no_file_no_socket_and_start_no_process(
    model_store: Path, server: str
) -> None:
    assert watched_events(server, model_store / "near-free.mar") == []


@pytest.mark.parametrize("server", WORKERS)
def test_with_the_prediction_log_on_the_only_write_goes_to_an_open_segment(
    model_store: Path, tmp_path: Path, server: str
) -> None:
    environ = {
        "OFFPATH_PREDICTION_LOG": (tmp_path / "log").as_uri(),
        "OFFPATH_SPOOL_DIR": str(tmp_path / "spool"),
    }
    assert watched_events(server, model_store / "near-free.mar", environ) == []
