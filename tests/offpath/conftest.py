"""Small archives with an echo handler, for servers that start in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offpath.echo_archive import MakeMar, write_mar


@pytest.fixture
def make_mar(tmp_path: Path) -> MakeMar:
    """Writes an archive to `<tmp_path>/store`: `make_mar(name, config, version)`."""

    def make(*args: object, **kwargs: object) -> Path:
        return write_mar(tmp_path / "store", *args, **kwargs)

    return make
