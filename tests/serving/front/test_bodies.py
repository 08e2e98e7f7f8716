from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from offpath.errors import ExpectedError
from offpath.serving.front import bodies
from offpath.serving.front.bodies import SHM, is_tmpfs, make_folder, remove_orphans
from offpath.serving.process.tmp_folders import remove_dead_folders
from tests.guarantees import guarantee
from tests.serving.front.running_door import door_before_answers


def test_folder_on_a_disk_is_refused(tmp_path: Path) -> None:
    if is_tmpfs(tmp_path):
        pytest.skip("the temporary folder is a tmpfs")
    with pytest.raises(ExpectedError, match="not on a tmpfs"):
        make_folder(1 << 20, tmp_path)


def test_too_little_memory_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Docker gives a container.
    monkeypatch.setattr(bodies, "free_bytes", lambda _: 64 << 20)
    with pytest.raises(ExpectedError, match="64 MB free.*--shm-size"):
        make_folder(32 << 20)
    folder, lock = make_folder(32 << 20, bodies=2)
    folder.rmdir()
    os.close(lock)


@guarantee(
    "The folder of the bodies is removed",
    "serving/front/door.py",
    "self.place.bodies.mkdir(mode=0o700)",
    "return",
)
def test_a_removed_folder_of_bodies_is_made_again(tmp_path: Path) -> None:
    with door_before_answers(tmp_path) as (door, _), httpx.Client(trust_env=False) as client:

        def ask() -> tuple[int, int]:
            predicted = client.post(f"{door.url}/predictions/m", content=bytes(900_000))
            return predicted.status_code, client.get(f"{door.url}/ping").status_code

        assert ask() == (200, 200)
        door._orphans_at = 0.0
        shutil.rmtree(door.place.bodies)
        assert ask() == (503, 503)
        remove_orphans(door.place.bodies, [])
        door.look_after()
        assert ask() == (200, 200)
        assert door.place.bodies.stat().st_mode & 0o777 == 0o700
        # No other door takes it for that of a killed one.
        remove_dead_folders(bodies.BODIES_PREFIX, SHM)
        assert ask() == (200, 200)


def start_other_door() -> tuple[subprocess.Popen[str], Path]:
    """Starts a process with a folder and a body in it."""
    code = (
        "from offpath.serving.front.bodies import make_folder; import time; "
        "folder, _ = make_folder(1); (folder / '0000000001').touch(); "
        "print(folder, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_start_first_removes_the_bodies_of_killed_doors_and_of_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed, dead = start_other_door()
    running, alive = start_other_door()
    strange = SHM / f"{bodies.BODIES_PREFIX}link"
    (tmp_path / "keep").touch()
    strange.symlink_to(tmp_path)
    try:
        assert dead.is_dir()
        killed.kill()
        killed.wait()
        # The bodies of the killed door fill the memory.
        free = {True: 0, False: 1 << 40}
        monkeypatch.setattr(bodies, "free_bytes", lambda _: free[dead.exists()])
        folder, lock = make_folder(1 << 20)
        assert [p.name for p in alive.iterdir()] == ["0000000001"]
        assert (tmp_path / "keep").exists()
        folder.rmdir()
        os.close(lock)
    finally:
        strange.unlink()
        running.kill()
        running.wait()
        remove_dead_folders(bodies.BODIES_PREFIX, SHM)
    assert not alive.exists()


def test_bodies_that_no_process_has_open_are_removed(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / name).write_bytes(b"x")
    with open(tmp_path / "2", "rb"):
        assert sorted(remove_orphans(tmp_path, [os.getpid()])) == ["1", "3"]
    assert [p.name for p in tmp_path.iterdir()] == ["2"]
    assert remove_orphans(tmp_path, [2**22 + 1]) == ["2"]
