"""A lock that dies with its process decides who owns a folder of segments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offpath.handler.prediction_log.owner import AdoptedFolders, is_owner_alive, list_owner_folders
from offpath.handler.prediction_log.sink_file import make_sink_folder_name
from tests.guarantees import guarantee
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[3]
StartWriter = Callable[..., Any]
CLAIM = """
import sys
from pathlib import Path
from offpath.handler.prediction_log.owner import AdoptedFolders
adopted = AdoptedFolders(Path(sys.argv[1]))
sys.stdin.readline()
print(len({one.name.owner for one in adopted.adopt()}), flush=True)
sys.stdin.readline()
"""


def find_sink_folder(tmp_path: Path) -> Path:
    return tmp_path / "spool" / make_sink_folder_name(f"file://{tmp_path}/out")


@guarantee(
    "Another server on the same spool dies",
    "handler/prediction_log/owner.py",
    "        fcntl.flock(fd, kind | fcntl.LOCK_NB)",
    "        pass",
)
def test_only_one_of_many_adopters_gets_the_segments_of_a_dead_process(
    tmp_path: Path, start_writer: StartWriter
) -> None:
    writers = [start_writer(segment_max_age_s=3600) for _ in range(3)]
    for writer in writers:
        writer.wait_until_written()
    # Stopped first, because a running writer adopts and ships the segments of a dead one.
    for writer in writers:
        os.kill(writer.pid, signal.SIGSTOP)
    for writer in writers:
        writer.kill()
    arguments = [sys.executable, "-c", CLAIM, str(find_sink_folder(tmp_path))]
    adopters = [
        subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    for adopter in adopters:
        adopter.stdin.write("go\n")  # type: ignore[union-attr]
        adopter.stdin.flush()  # type: ignore[union-attr]

    counts = [int(adopter.stdout.readline()) for adopter in adopters]  # type: ignore[union-attr]
    for adopter in adopters:
        adopter.communicate("\n")

    assert sum(counts) == 3


def test_a_forked_child_does_not_keep_its_dead_parents_segments(
    tmp_path: Path, start_writer: StartWriter
) -> None:
    # The child outlives the parent, and inherited its descriptors.
    writer = start_writer({"forks": True, "batches": 1}, segment_max_age_s=3600)
    writer.wait()

    sink_folder = find_sink_folder(tmp_path)
    (folder,) = list_owner_folders(sink_folder)
    # The child closes them only when it first runs, which may be after its parent's end.
    eventually(lambda: not is_owner_alive(folder))
    adopted = AdoptedFolders(sink_folder)

    assert adopted.adopt()
    adopted.release()
