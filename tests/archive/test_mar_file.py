"""Archives of strangers: each is refused at once, in words that a terminal can show."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from offpath.archive.mar_file import HANDLER_API, HANDLER_API_KEY, copy_mar, read_mar, unpack_mar
from offpath.errors import WrongOption
from tests.guarantees import guarantee
from tests.support.hostile_archives import FILES, HOSTILE, MODEL, pack, write_hostile

# One second on a quiet machine is ten thousand times what a good archive takes.
MAX_CPU_S = 5.0


@guarantee(
    "Hostile archives and YAML",
    "archive/mar_file.py",
    'is_outside = name.is_absolute() or ".." in name.parts or not name.parts',
    "is_outside = False",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_at_once(tmp_path: Path, name: str) -> None:
    path = write_hostile(tmp_path, name)
    began = time.process_time()
    with pytest.raises(WrongOption) as refused:
        read_mar(path)
    assert time.process_time() - began < MAX_CPU_S
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_damage_behind_the_manifest_is_found_when_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.mar"
    pack(path, {"model": MODEL})
    content = bytearray(path.read_bytes())
    content[content.index(b"net.pt") + 8] ^= 0xFF
    path.write_bytes(bytes(content))
    archive = read_mar(path)
    with pytest.raises(WrongOption, match="not a TorchServe archive"):
        unpack_mar(archive, tmp_path / "folder")
    with pytest.raises(WrongOption, match="not a TorchServe archive"):
        copy_mar(archive, tmp_path / "b.mar", {})


@pytest.mark.parametrize("found", [None, 0, HANDLER_API + 1, "1", "\x1b[2J" * 100])
def test_our_handler_of_another_version_is_refused_with_the_cure(
    tmp_path: Path, found: object
) -> None:
    pack(tmp_path / "a.mar", {"model": MODEL, HANDLER_API_KEY: found})
    cure = f"expected {HANDLER_API}; " + (
        "offpath archive --from" if found == 0 else "install the offpath that built it"
    )
    with pytest.raises(WrongOption, match=cure) as refused:
        read_mar(tmp_path / "a.mar")
    assert str(refused.value).isprintable()


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """Returns what torch-model-archiver makes with `--archive-format no-archive`."""
    pack(tmp_path / "a.mar", {"model": MODEL})
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        archive.extractall(tmp_path / "a")
    return tmp_path / "a"


@pytest.mark.parametrize("name", ["a", "a.mar"])
def test_a_folder_or_file_is_unpacked_and_copied_with_the_other_files_unchanged(
    model_folder: Path, tmp_path: Path, name: str
) -> None:
    copy_mar(read_mar(tmp_path / name), tmp_path / "b.mar", {"net.py": b"new"})
    for source, changed in ((name, {}), ("b.mar", {"net.py": b"new"})):
        archive = read_mar(tmp_path / source)
        unpack_mar(archive, tmp_path / f"of-{source}")
        assert archive.manifest["model"] == MODEL
        for file, content in {**FILES, **changed}.items():
            assert (tmp_path / f"of-{source}" / file).read_bytes() == content


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda folder: (folder / "x").symlink_to("/etc/passwd"), id="link"),
        pytest.param(lambda folder: (folder / "x").symlink_to(folder), id="link-to-a-folder"),
        pytest.param(lambda folder: os.mkfifo(folder / "offpath" / "x"), id="fifo"),
        pytest.param(lambda folder: (folder / "a\x1b[2Jb").touch(), id="name-with-escapes"),
    ],
)
def test_a_folder_is_checked_like_an_archive(
    model_folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(model_folder)
    with pytest.raises(WrongOption, match="not a TorchServe archive") as refused:
        read_mar(model_folder)
    assert str(refused.value).isprintable()
