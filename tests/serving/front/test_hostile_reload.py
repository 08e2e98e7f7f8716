"""Reloads of an archive that has become hostile, or without descriptors for the end of the old."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from offpath.errors import ExpectedError
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.one_host import OneHostSession
from offpath.serving.front.rotation import Retired
from offpath.serving.server.model_store import find_models
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import View
from tests.support.eventually import eventually
from tests.support.guarantees import guarantee
from tests.support.hostile_archives import HOSTILE


class Waiting(NamedTuple):
    """A front door before its first server, which begins as each later one does."""

    session: OneHostSession
    archive: Path


@pytest.fixture(scope="module")
def waiting(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    folder = tmp_path_factory.mktemp("reload")
    archive = folder / "store" / "near-free.mar"
    archive.parent.mkdir()
    shutil.copy(model_store / archive.name, archive)

    def make_settings(kind: str | None) -> ServerSettings:  # as `offpath serve` does
        store, entries = find_models(archive.parent, (archive.name,), folder)
        return ServerSettings(store, entries, server="granian", log_dir=folder / "logs")

    session = OneHostSession(make_settings, DoorSettings(port=0, metrics_port=0), View())
    archive.unlink()
    yield Waiting(session, archive)
    session.stop()


@guarantee("Hostile archives and YAML")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_reload_refuses_a_hostile_archive_and_starts_nothing(waiting: Waiting, name: str) -> None:
    HOSTILE[name](waiting.archive)
    try:
        with pytest.raises(ExpectedError):
            waiting.session.rotation.begin()
    finally:
        if waiting.archive.is_dir():
            waiting.archive.rmdir()
        else:
            waiting.archive.unlink()
    assert waiting.session.rotation.starting is None


def test_a_lack_of_descriptors_leaves_no_old_server_behind() -> None:
    class OldServer:
        stops = 0

        def is_running(self) -> bool:
            return False

        def stop(self) -> None:
            self.stops += 1
            if self.stops == 1:
                raise OSError(errno.EMFILE, "Too many open files")

    old = OldServer()
    retired = Retired(cast(Server, old), since=0, drain_s=0, old_nginx=[])
    eventually(retired.end_if_done)
    assert old.stops == 2
