"""A fresh environment with the built wheel, and a user's folder, both apart from the clone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from tests.journeys.models import JOURNEYS, LABELS, NET, NETS, write_weights
from tests.journeys.shell import Shell
from tests.support import wheel as built
from tests.support.images import jpeg

# Fixtures.
wheel, python = built.wheel, built.python


@pytest.fixture(scope="module")
def shell(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a folder with a user's models, weights, labels, photographs and handler.py."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "net.py").write_text(NET)
    (folder / "nets.py").write_text(NETS)
    for name in JOURNEYS:
        write_weights(name, folder / f"{name}.pt")
    (folder / "classes.txt").write_text("\n".join(LABELS))
    (folder / "part.jpg").write_bytes(jpeg(size=(640, 480)))
    (folder / "photographs").mkdir()
    (folder / "photographs" / "one.jpg").write_bytes(jpeg("astronaut", (320, 240)))
    # Every TorchServe user has a handler.py.
    (folder / "handler.py").write_text("raise ImportError('not this one')")
    tmp_dir = make_short_tmp_dir()
    yield Shell(python, folder, tmp_dir)
    remove_folder(tmp_dir)
