from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from offpath.archive.build import build_archive
from offpath.errors import ExpectedError, WrongOption
from offpath.serving.check.trial import try_archive
from tests.archive.conftest import THREE_CLASSES, MakeSpec
from tests.guarantees import guarantee

ROOT = Path(__file__).parents[2]
LABELS = ["red", "green", "blue"]


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


BUILD = """
import sys
sys.modules["ts"] = None  # no archive of ours needs TorchServe
from pathlib import Path
from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import load_model_source
model, store, *origins = sys.argv[1:]
config = make_model_config(load_preset("cpu"), {}, {})
for index, weights in enumerate(origins):
    source = load_model_source(model, weights)
    labels = ["red", "green", "blue"]
    spec = ArchiveSpec(f"tiny-{index}", "1.0", source, labels, "", config)
    build_archive(spec, Path(store))
"""


def test_same_inputs_give_the_same_bytes_in_any_process_folder_and_hour_without_torchserve(
    make_spec: MakeSpec, model_file: Path, weights_file: Path, tmp_path: Path
) -> None:
    scratch, store = tmp_path / "scratch folder", tmp_path / "store"
    scratch.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"}
    subprocess.run(
        [*(sys.executable, "-c", BUILD), model_file, store, weights_file, "random"],
        check=True,
        cwd=ROOT,
        env=env,
    )
    assert list(scratch.iterdir()) == []
    os.utime(model_file, (1e9, 1e9))
    for index, weights in enumerate([str(weights_file), "random"]):
        spec = make_spec(f"tiny-{index}", labels=LABELS, model=str(model_file), weights=weights)
        again = build_archive(spec, tmp_path / "again").path
        assert digest(again) == digest(store / again.name)


@pytest.mark.parametrize("name", ["tiny.py", "classifier_entry.py"])
def test_extra_file_that_would_hide_another_is_refused(
    make_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / name).write_text("x = 1")
    with pytest.raises(ExpectedError, match=f"the archive already has a {name}"):
        build_archive(make_spec(extra_files=(tmp_path / "elsewhere" / name,)), tmp_path / "store")


# A model that opens a file when it is made.
READS = THREE_CLASSES.replace(
    "super().__init__()", "super().__init__()\n        open({path}).close()"
)


def test_bundled_photographs_check_answers_and_settle_what_is_open(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    said: list[str] = []
    # The model needs a file beside it, which goes along.
    (tmp_path / "sizes.txt").touch()
    beside = "__import__('pathlib').Path(__file__).with_name('sizes.txt')"
    model_file.write_text(READS.format(path=beside))
    files = {"labels": LABELS, "extra_files": (tmp_path / "sizes.txt",)}
    spec = make_spec(**files, engine="openvino", activation="auto")
    spec = replace(spec, checks_answers=True, trial=try_archive)
    built = build_archive(spec, tmp_path, say=said.append)
    with zipfile.ZipFile(built.path) as file:
        assert "engine/parity.npz" in file.namelist()
        config = yaml.safe_load(file.read("model-config.yaml"))
    assert config == built.config.settings
    assert config["handler"] == {"engine": "openvino", "activation": "softmax"}
    assert any("engine openvino fp32: on 16 photographs" in line for line in said)
    assert "answer to espresso.jpg: 200" in said[-1]
    # The spec is as it was.
    assert spec.config.settings["handler"]["activation"] == "auto"


def test_model_that_reads_a_file_beside_it_needs_the_file_in_the_archive(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.txt").touch()
    model_file.write_text(READS.format(path="'sizes.txt'"))
    spec = replace(make_spec(labels=LABELS), trial=try_archive)
    with pytest.raises(WrongOption, match="in a worker: FileNotFound.*--extra-file"):
        build_archive(spec, tmp_path)
    assert not (tmp_path / "tiny.mar").exists()


def test_a_model_that_needs_this_users_downloads_is_refused(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "checkpoints" / "w.pth"
    cached.parent.mkdir(parents=True)
    torch.save({}, cached)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    downloads = "torch.hub.load_state_dict_from_url('http://127.0.0.1:9/w.pth')"
    model_file.write_text(READS.replace("open({path}).close()", downloads))
    spec = replace(make_spec(labels=LABELS), trial=try_archive)
    with pytest.raises(WrongOption, match="opens http://127.0.0.1:9/w.pth.*weights=None"):
        build_archive(spec, tmp_path)


@guarantee(
    "A model's answers depend on chance or on other images",
    "archive/build.py",
    "    check_repeatable(model, config.handler, photographs.held_out)\n",
    "",
)
def test_a_model_whose_answers_vary_makes_no_archive(
    make_spec: MakeSpec, model_file: Path, tmp_path: Path
) -> None:
    varying = "torch.nn.functional.dropout(images)[:, :, 0, 0] * 9"
    model_file.write_text(THREE_CLASSES.replace("images.mean(dim=(2, 3))", varying))
    spec = replace(make_spec(labels=LABELS), checks_answers=True)
    with pytest.raises(WrongOption, match="alone again, by"):
        build_archive(spec, tmp_path)
    assert not (tmp_path / "tiny.mar").exists()
