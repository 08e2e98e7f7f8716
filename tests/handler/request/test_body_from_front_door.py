from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from offpath.handler.contract import Request
from offpath.handler.errors import BodyGone, BodyUnreadable, ConfigError, ItemError
from offpath.handler.request.body_from_front_door import DoorBodies
from offpath.handler.request.payload import read_fields, read_payload
from tests.guarantees import guarantee

KEY = "k" * 64
NAME = "0000000001"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bodies"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def door(folder: Path) -> DoorBodies:
    return DoorBodies(str(folder), KEY)


def headers(body: object, key: str = KEY) -> dict[str, str]:
    return {
        "x-offpath-key": key,
        "x-offpath-body": str(body),
        "x-offpath-type": "image/jpeg",
        "x-offpath-id": "the-id",
    }


def read(door: DoorBodies, sent: dict[str, str]) -> bytes:
    return bytes(read_payload(read_fields(door.open(Request(b"", headers=sent))), 1000))


def test_a_body_by_name_is_read(door: DoorBodies, folder: Path) -> None:
    (folder / NAME).write_bytes(b"\xff\xd8 image")
    assert read(door, headers(folder / NAME)) == b"\xff\xd8 image"


@guarantee(
    "Forged headers, names and keys",
    "handler/request/body_from_front_door.py",
    'return hmac.compare_digest(headers.get(KEY_HEADER, "").encode(), self._key)',
    "return KEY_HEADER in headers",
)
@pytest.mark.parametrize("key", ["", "wrong", "K" * 64])
def test_name_without_the_key_is_ignored(door: DoorBodies, folder: Path, key: str) -> None:
    (folder / NAME).write_bytes(b"\xff\xd8 secret")
    request = Request(b"\xff\xd8 own", headers=headers(folder / NAME, key))
    assert door.open(request) is request
    assert door.find_id(request.headers) is None


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("{folder}/../secret", id="parent"),
        pytest.param("{folder}/1/../../secret", id="parent-below"),
        pytest.param("{folder}/secret", id="letters"),
        pytest.param("{folder}/1\n", id="line-end"),
        pytest.param("{folder}/١", id="other-digits"),
        pytest.param("/etc/1", id="elsewhere"),
        pytest.param("1", id="relative"),
        pytest.param("{folder}//1", id="twice"),
        pytest.param("{folder}/" + "1" * 300, id="long"),
    ],
)
def test_name_that_the_front_door_cannot_have_given_is_refused(
    door: DoorBodies, folder: Path, name: str
) -> None:
    (folder / "1").write_bytes(b"\xff\xd8")
    (folder.parent / "secret").write_bytes(b"\xff\xd8")
    with pytest.raises(BodyUnreadable):
        read(door, headers(name.format(folder=folder)))


def plant_link(folder: Path) -> None:
    (folder / NAME).symlink_to("/etc/passwd")


def plant_hard_link(folder: Path) -> None:
    (folder.parent / "secret").write_bytes(b"\xff\xd8")
    os.link(folder.parent / "secret", folder / NAME)


def plant_fifo(folder: Path) -> None:
    os.mkfifo(folder / NAME)


def plant_folder(folder: Path) -> None:
    (folder / NAME).mkdir()


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize("plant", [plant_link, plant_hard_link, plant_fifo, plant_folder])
def test_entry_that_is_not_a_file_of_the_front_door_is_refused(
    door: DoorBodies, folder: Path, plant: Callable[[Path], None]
) -> None:
    plant(folder)
    with pytest.raises(BodyUnreadable):
        read(door, headers(folder / NAME))


def test_client_that_left_is_an_error_of_its_item(door: DoorBodies, folder: Path) -> None:
    with pytest.raises(BodyGone) as caught:
        read(door, headers(folder / NAME))
    assert issubclass(caught.type, ItemError) and caught.value.status == 400


def test_a_folder_that_others_may_use_is_refused(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="0700"):
        DoorBodies(str(folder), KEY)
    with pytest.raises(ConfigError, match="No such file"):
        DoorBodies(str(folder / "nowhere"), KEY)


@guarantee(
    "Descriptors that run out",
    "handler/request/body_from_front_door.py",
    "            os.close(file)",
    "            pass",
)
@guarantee("Hours of good and hostile images")
def test_no_descriptor_stays_open(door: DoorBodies, folder: Path) -> None:
    (folder / NAME).write_bytes(b"\xff\xd8")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        read(door, headers(folder / NAME))
        with pytest.raises(ItemError):
            read(door, headers(folder / "2"))
    assert len(os.listdir("/proc/self/fd")) == before
