"""A model that needs more than its archive is refused when the archive is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offpath.archive.build import build_archive
from offpath.errors import WrongOption
from tests.archive.conftest import THREE_CLASSES, MakeSpec
from tests.support.images import jpeg

READS = THREE_CLASSES.replace(
    "super().__init__()", "super().__init__()\n        open({path}).close()"
)


def test_model_that_reads_a_file_beside_it_needs_the_file_in_the_archive(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.txt").touch()
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "one.jpg").write_bytes(jpeg(size=(96, 80)))
    checks = {"checks_answers": True, "calibrate": tmp_path / "photographs"}
    model_file.write_text(READS.format(path="'sizes.txt'"))
    with pytest.raises(WrongOption, match="not from the archive alone: FileNotFound"):
        build_archive(replace(make_spec(labels=["a", "b", "c"]), **checks), tmp_path)
    assert not (tmp_path / "tiny.mar").exists()
    model_file.write_text(
        READS.format(path="__import__('pathlib').Path(__file__).with_name('sizes.txt')")
    )
    spec = make_spec(labels=["a", "b", "c"], extra_files=(tmp_path / "sizes.txt",))
    assert build_archive(replace(spec, **checks), tmp_path).path.exists()


def test_a_model_that_needs_this_users_downloads_is_refused(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "checkpoints" / "w.pth"
    cached.parent.mkdir(parents=True)
    torch.save({}, cached)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    downloads = "torch.hub.load_state_dict_from_url('http://127.0.0.1:9/w.pth')"
    model_file.write_text(READS.replace("open({path}).close()", downloads))
    spec = replace(make_spec(labels=["a", "b", "c"]), checks_answers=True)
    with pytest.raises(WrongOption, match="opens http://127.0.0.1:9/w.pth.*weights=None"):
        build_archive(spec, tmp_path)
