"""A full disk is named in the message of a command."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.offpath.conftest import Run


@pytest.mark.parametrize("full", ["temporary", "output"])
def test_a_full_disk_is_named_without_a_temporary_file_and_keeps_the_archive_alone(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mount_tmpfs: Callable[..., Path],
    full: str,
) -> None:
    disk = mount_tmpfs("size=200k")
    if full == "temporary":
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
    output = tmp_path / "store" if full == "temporary" else disk
    output.mkdir(exist_ok=True)
    (output / "classifier.mar").write_bytes(b"the last one")
    done = run("archive", "--model", "near-free", "--output", output, "--force")
    last = done.err.splitlines()[-1]
    assert done.code in (1, 2) and str(disk) in last and "No space left" in last
    assert "offpath-archive-" not in last
    assert (output / "classifier.mar").read_bytes() == b"the last one"
    # torch leaves its own folder in the temporary one.
    left = [*output.iterdir(), *disk.glob("offpath-*")]
    assert left == [output / "classifier.mar"]
