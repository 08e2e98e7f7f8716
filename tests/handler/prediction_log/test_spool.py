"""The spool: sealing, its bound, both policies, and disks that are full or cannot be written."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.prediction_log import shipper
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.owner import count_bytes
from offpath.handler.prediction_log.prediction_log import PredictionLog
from offpath.handler.prediction_log.spool import Spool
from tests.guarantees import guarantee
from tests.handler.prediction_log.conftest import make_record
from tests.support.bucket import read_out
from tests.support.eventually import eventually

MakeSettings = Callable[..., PredictionLogSettings]
OpenLog = Callable[..., PredictionLog]

LINE = b'{"event_id":"' + b"x" * 110 + b'"}\n'
SMALL = {"segment_max_bytes": 1024, "spool_max_bytes": 8192}


@pytest.fixture
def make_spool(make_settings: MakeSettings) -> Callable[..., Spool]:
    def make(hour: Callable[[], str] = lambda: "20261121T03", **mapping: Any) -> Spool:
        return Spool(make_settings(**{"segment_max_age_s": 100, **mapping}), hour)

    return make


# Sealing.


@pytest.mark.parametrize(
    "hours",
    [
        pytest.param(["20261121T03", "20261121T04"], id="passes"),
        pytest.param(["20261121T03", "20261121T02"], id="clock-set-back"),
        pytest.param(["20261121T03", "20361121T03"], id="clock-set-forward"),
    ],
)
def test_a_segment_never_spans_two_hours(
    make_spool: Callable[..., Spool], hours: list[str]
) -> None:
    now = hours[:1]
    spool = make_spool(hour=lambda: now[-1])
    spool.append(LINE, 1)
    now.append(hours[1])
    spool.rotate_if_due()
    spool.append(LINE, 1)
    spool.seal()

    assert [segment.name.hour for segment in spool.sealed] == hours
    assert len({segment.name.key for segment in spool.sealed}) == 2


def test_spool_that_was_removed_in_use_is_made_again(make_spool: Callable[..., Spool]) -> None:
    spool = make_spool()
    spool.append(LINE, 3)
    shutil.rmtree(spool.sink_folder)

    spool.rotate_if_due()
    spool.append(LINE, 1)
    spool.seal()

    assert (spool.dropped, spool.spool_bytes) == (3, len(LINE))
    assert spool.sealed[0].path.read_bytes() == LINE
    assert "removed while in use" in str(spool.problem)


# The bound.


def number_line(number: int) -> bytes:
    return b'{"event_id":"%0100d"}\n' % number


def fill(spool: Spool, records: int) -> list[bytes]:
    """Appends numbered records; returns those left in the spool, oldest first."""
    for number in range(records):
        assert spool.append(number_line(number), 1)
        spool.rotate_if_due()
    spool.seal()
    kept = [line for one in spool.sealed for line in one.path.open("rb")]
    assert spool.dropped + len(kept) == spool.appended == records
    return kept


@guarantee("The spool or its disk is full")
def test_drop_oldest_keeps_the_bound_and_the_newest_records(
    make_spool: Callable[..., Spool],
) -> None:
    spool = make_spool(**SMALL)

    kept = fill(spool, 200)

    assert count_bytes(spool.sink_folder) <= SMALL["spool_max_bytes"]
    assert 30 < len(kept) < 200
    assert kept == [number_line(number) for number in range(200)][-len(kept) :]


def test_closing_releases_a_blocked_append(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocked").touch()
    log = open_log(uri=f"file://{tmp_path}/blocked/out", when_full="block", **SMALL)

    def append_until_closed() -> None:
        while log.counters().dropped == 0:
            log.append([make_record()])

    appender = threading.Thread(target=append_until_closed, daemon=True)
    appender.start()
    eventually(lambda: "replies wait" in caplog.text)
    log.close()

    eventually(lambda: not appender.is_alive())


# Full disks, and a spool that cannot be made.


def fill_disk(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return filler


@guarantee(
    "The spool or its disk is full",
    "handler/prediction_log/spool.py",
    ("self.dropped += records\n" "                    return False"),
    "return False",
)
def test_a_full_disk_costs_records_but_no_request(
    open_log: OpenLog,
    mount_tmpfs: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    disk = mount_tmpfs("size=256k")
    log = open_log(spool_dir=str(disk), segment_max_age_s=3600)
    # The segment's last page is partly used, so the disk fills up in the middle of a line.
    log.append([make_record("before")])
    filler = fill_disk(disk)

    for number in range(200):
        log.append([make_record(f"full-{number}")])
    full = log.counters()
    eventually(lambda: "make room there" in caplog.text)
    filler.unlink()
    for number in range(50):
        log.append([make_record(f"free-{number}")])
    log.close()

    counters = log.counters()
    found = read_out(tmp_path / "out")
    assert full.dropped > 0
    assert counters.dropped == full.dropped
    assert counters.shipped + counters.dropped == 251
    assert set(found.values()) == {1} and len(found) == counters.shipped
    assert {f"free-{number}" for number in range(50)} <= found.keys()


@guarantee("The spool or its disk is full")
def test_block_waits_on_a_full_disk_and_drops_nothing(
    open_log: OpenLog,
    mount_tmpfs: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    disk = mount_tmpfs("size=256k")
    log = open_log(spool_dir=str(disk), segment_max_age_s=3600, when_full="block")
    filler = fill_disk(disk)
    ids = [f"{number}" for number in range(300)]
    appender = threading.Thread(
        target=lambda: [log.append([make_record(one)]) for one in ids], daemon=True
    )
    appender.start()
    eventually(lambda: "replies wait" in caplog.text)
    assert appender.is_alive()

    filler.unlink()
    eventually(lambda: not appender.is_alive())
    log.close()

    assert log.counters().dropped == 0
    assert read_out(tmp_path / "out") == Counter(ids)


def test_a_spool_that_cannot_be_made_costs_records_until_it_can(
    open_log: OpenLog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shipper, "TICK_S", 0.02)
    monkeypatch.setattr(shipper, "RESCAN_S", 0.05)
    (tmp_path / "disk").symlink_to(tmp_path / "not-mounted")
    log = open_log(spool_dir=str(tmp_path / "disk" / "spool"))
    assert f"File exists: '{tmp_path}/disk'" in log.problem

    for _ in range(100):
        log.append([make_record(), make_record()])
    eventually(lambda: "OFFPATH_SPOOL_DIR" in caplog.text)
    time.sleep(0.2)  # Ten ticks of the shipper, none of which may warn again.

    assert log.counters().dropped == 200
    assert log.counters().appended == 0
    warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warned) == 1

    (tmp_path / "not-mounted").mkdir()

    def append_one() -> bool:
        log.append([make_record()])
        return log.counters().shipped > 0

    eventually(append_one)
    assert log.problem == ""


def test_block_refuses_to_start_without_a_spool(open_log: OpenLog, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError):
        open_log(spool_dir=str(tmp_path / "file" / "spool"), when_full="block")


# Other properties of append.


def test_append_never_raises_and_counts_records_it_cannot_encode(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()

    log.append([make_record(payload_bytes=object()), make_record()])
    log.append([make_record(payload_bytes=object())])

    assert log.counters().dropped == 3
    assert caplog.text.count("records dropped by a bug") == 1


def test_sampling_keeps_its_share_and_chooses_by_event(open_log: OpenLog, tmp_path: Path) -> None:
    first = open_log(sample_rate=0.25)
    # In another spool, because the same spool never records an id twice.
    second = open_log(sample_rate=0.25, spool_dir=str(tmp_path / "host-2"))
    records = [make_record() for _ in range(4000)]

    first.append(records)
    second.append(records)

    assert 850 < first.counters().appended < 1150
    assert first.counters().appended == second.counters().appended
