"""Files of torch as `--model` and `--weights`, and the ones that are refused."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.model_probe import count_classes
from offpath.archive.sources.model_source import load_model_source
from offpath.errors import ExpectedError
from offpath.handler.image.geometry import InputGeometry
from tests.archive.conftest import load


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"junk", b"PK\x05\x06" * 9])
def test_junk_weights_are_refused(model_file: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "junk.pt").write_bytes(content)
    with pytest.raises(ExpectedError, match="junk.pt"):
        load_model_source(str(model_file), str(tmp_path / "junk.pt"))
    with pytest.raises(ExpectedError, match="junk.pt"):
        load_model_source(str(tmp_path / "junk.pt"), None)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_is_accepted_as_the_model_only(
    model_file: Path, weights_file: Path, tmp_path: Path
) -> None:
    module = load_model_source(str(model_file), str(weights_file)).module
    script = tmp_path / "tiny.ts.pt"
    torch.jit.save(torch.jit.trace(module.eval(), torch.zeros(1, 3, 32, 32)), script)
    source = load_model_source(str(script), None)
    assert (source.script_file, source.model_file) == (script, None)
    assert count_classes(source.module, InputGeometry()) == 3
    with pytest.raises(ExpectedError, match="leave --weights out"):
        load_model_source(str(script), str(weights_file))
    with pytest.raises(ExpectedError, match="is TorchScript: pass it as --model"):
        load_model_source(str(model_file), str(script))
    damaged = bytearray(script.read_bytes())
    position = damaged.index(b"code/")
    damaged[position + 40 : position + 400] = bytes(360)
    (tmp_path / "damaged.pt").write_bytes(damaged)
    with pytest.raises(ExpectedError, match="damaged.pt"):
        load_model_source(str(tmp_path / "damaged.pt"), None)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.stem(images)).mean((2, 3)))


def export(path: Path) -> Path:
    shapes = ({0: torch.export.Dim("batch")},)
    images = (torch.zeros(2, 3, 32, 32),)
    program = torch.export.export(Small().eval(), images, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0"])
def test_pickled_code_in_a_program_never_runs(tmp_path: Path, member: str) -> None:
    sprung, good = tmp_path / "sprung", export(tmp_path / "net.pt2")
    torch.save((Trap(sprung),), tmp_path / "trap")
    content = (tmp_path / "trap").read_bytes()
    if "opaque" in member:
        content = pickle.dumps(Trap(sprung))
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as new:
        names = {name.partition("/")[2]: name for name in old.namelist()}
        for inside in {**names, member: ""}:
            data = content if inside == member else old.read(names[inside])
            new.writestr(f"evil/{inside}", data)
    with pytest.raises(ExpectedError, match="evil.pt2"):
        load(tmp_path / "evil.pt2", None)
    assert not sprung.exists()
