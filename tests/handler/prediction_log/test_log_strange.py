"""Entries that do not belong in a spool are set aside, logged once, and stop nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.owner import AdoptedFolders, count_bytes
from offpath.handler.prediction_log.prediction_log import PredictionLog
from offpath.handler.prediction_log.segment import SegmentName
from offpath.handler.prediction_log.sink_file import make_sink_folder_name, write_sink_file
from tests.guarantees import guarantee
from tests.handler.prediction_log.conftest import make_record
from tests.support.bucket import read_out
from tests.support.eventually import eventually

OWNER = "node-1-1x00000000"
OpenLog = Callable[..., PredictionLog]
MakeSettings = Callable[..., PredictionLogSettings]


def name_segment(sequence: int) -> str:
    return SegmentName(OWNER, "20261121T03", sequence).file_name


def make_link(path: Path) -> None:
    target = path.parents[3] / "elsewhere"
    target.write_bytes(b'{"event_id":"stolen"}\n')
    path.symlink_to(target)


def make_another_users(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path.write_bytes(b'{"event_id":"stolen"}\n')
    os.chown(path, 12345, 12345)


STRANGE = {
    "fifos": os.mkfifo,
    "folders": Path.mkdir,
    "links": make_link,
    "another-user's": make_another_users,
}


@pytest.fixture
def sink_folder(tmp_path: Path, make_settings: MakeSettings) -> Path:
    """The sink's folder in a spool where a dead owner has left the record e1.

    Beside the owner's folder are names of owners that are no folders.
    """
    settings = make_settings()
    folder = settings.spool_dir / make_sink_folder_name(settings.uri)
    (folder / OWNER).mkdir(parents=True, mode=0o700)
    write_sink_file(folder, settings)
    (folder / OWNER / name_segment(3)).write_bytes(b'{"event_id":"e1"}\n')
    (folder / "node-0-1x00000000").symlink_to(folder / OWNER)
    return folder


@pytest.fixture(params=STRANGE)
def strange(request: pytest.FixtureRequest, sink_folder: Path) -> list[str]:
    """Names of two entries before the good segment that are not segments."""
    names = [name_segment(1), name_segment(2)]
    for name in names:
        STRANGE[request.param](sink_folder / OWNER / name)
    return names


@guarantee("Poisoned spools, segments and objects")
@pytest.mark.usefixtures("strange")
def test_worker_delivers_despite_entries_that_are_not_segments(
    open_log: OpenLog, sink_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    log.append([make_record("e2")])
    eventually(lambda: log.counters().shipped == 2)
    log.close()

    assert set(read_out(tmp_path / "out")) == {"e1", "e2"}
    assert caplog.text.count("not a segment") == 2
    assert len(list(sink_folder.glob("*.aside"))) == 2
    assert not (sink_folder / OWNER).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_left_alone(sink_folder: Path) -> None:
    shutil.copytree(sink_folder / OWNER, sink_folder / "evil-1-1x00000000")
    os.chown(sink_folder / "evil-1-1x00000000", 12345, 12345)
    adopted = AdoptedFolders(sink_folder)

    assert [one.name.owner for one in adopted.adopt()] == [OWNER]
    adopted.release()
    assert count_bytes(sink_folder) > 0


def test_refused_object_delays_no_other(
    open_log: OpenLog, sink_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder takes the place of the object, so that only this segment fails for ever."""
    refused = SegmentName(OWNER, "20261121T03", 3)
    (tmp_path / "out" / refused.key / "x").mkdir(parents=True)
    log = open_log(retry_max_s=0.2)
    for number in range(5):
        log.append([make_record(f"n{number}")])
        eventually(lambda: log.counters().shipped == number + 1)

    eventually(lambda: log.counters().retries > 1)
    assert (sink_folder / OWNER / refused.file_name).exists()
    assert caplog.text.count("cannot deliver") == 1
    assert "takes records again" not in caplog.text
