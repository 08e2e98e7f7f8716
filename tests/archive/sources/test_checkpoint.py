"""Files of weights: what is found in them, and that nothing in them runs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import pickle
import sys
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.sources.checkpoint import find_state_dict, load_checkpoint
from offpath.errors import ExpectedError, WrongOption
from tests.guarantees import guarantee

WEIGHTS = {"conv.weight": torch.arange(6.0).view(2, 3), "fc.bias": torch.zeros(4)}
NAMES = frozenset(WEIGHTS)
HERE = Path(__file__).parent


def read(path: Path, names: frozenset[str] = NAMES) -> tuple[dict[str, torch.Tensor], list[str]]:
    said: list[str] = []
    loaded = load_checkpoint(path, said.append)
    return dict(find_state_dict(loaded, path, names, said.append)), said


def assert_same(weights: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in WEIGHTS.items()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(WEIGHTS, [], id="plain"),
        pytest.param({"state_dict": WEIGHTS, "epoch": 3}, ["'state_dict'"], id="lightning"),
        pytest.param({"model": WEIGHTS, "optimizer": {"lr": 1}}, ["'model'"], id="model"),
        pytest.param(
            {"ema": prefixed("module."), "step": 1},
            ["'ema'", "'module.'"],
            id="ema-alone",
        ),
        pytest.param(prefixed("module."), ["'module.'"], id="ddp"),
        pytest.param(prefixed("module._orig_mod."), ["'module._orig_mod.'"], id="ddp-of-compiled"),
        pytest.param(prefixed("resnet."), ["'resnet.'"], id="any-prefix"),
        pytest.param(
            {
                "criterion.pos_weight": torch.ones(4),
                "criterion.weight": torch.ones(4),
                **prefixed("model."),
                **prefixed("ema.model."),
                "train_acc.confmat": torch.zeros(4, 4),
            },
            [
                "'model.'",
                "criterion.pos_weight, criterion.weight, ema.model.conv.weight and 2 more",
            ],
            id="loss-average-and-metric-beside",
        ),
    ],
)
def test_weights_are_found_and_what_was_taken_off_is_said(
    tmp_path: Path, content: dict[str, Any], words: list[str]
) -> None:
    torch.save(content, tmp_path / "a.pt")
    weights, said = read(tmp_path / "a.pt")
    assert_same(weights)
    assert len(said) == len(words)
    for line, word in zip(said, words):
        assert word in line and "a.pt" in line


def test_a_prefix_that_the_model_has_itself_stays(tmp_path: Path) -> None:
    own = prefixed("model.")
    torch.save(own, tmp_path / "a.pt")
    weights, said = read(tmp_path / "a.pt", frozenset(own))
    assert (weights.keys(), said) == (own.keys(), [])


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"head.weight": torch.ones(5, 4)}, id="linear"),
        pytest.param({"head.weight": torch.ones(4), "head.bias": torch.ones(4)}, id="norm"),
    ],
)
def test_layer_beside_the_model_is_refused(tmp_path: Path, beside: dict[str, torch.Tensor]) -> None:
    torch.save({**prefixed("backbone."), **beside}, tmp_path / "a.pt")
    with pytest.raises(
        WrongOption, match="begin with 'backbone.'.* layers beside: head.weight; write"
    ):
        read(tmp_path / "a.pt")


def test_versions_of_modules_stay_with_the_weights(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2))
    weights = torch.nn.ModuleDict({"module": module}).state_dict()
    torch.save({"state_dict": weights}, tmp_path / "a.pt")
    loaded = load_checkpoint(tmp_path / "a.pt")
    found = find_state_dict(loaded, tmp_path / "a.pt", frozenset(module.state_dict()))
    assert found._metadata == module.state_dict()._metadata


def test_safetensors_are_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(prefixed("module."), tmp_path / "a.safetensors")
    assert_same(read(tmp_path / "a.safetensors")[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param([torch.zeros(1)], "not a state dict .* but a list", id="list"),
        pytest.param({"epoch": 1, "lr": 0.1}, "its keys: epoch, lr", id="no-weights"),
        pytest.param(torch.nn.Linear(3, 3), r"torch\.save\(model\.state_dict\(\)", id="model"),
    ],
)
def test_file_without_a_state_dict_is_refused(
    tmp_path: Path, content: object, message: str
) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ExpectedError, match=message):
        read(tmp_path / "a.pt")


def test_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="no such file"):
        read(tmp_path / "gone.pt")
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(ExpectedError, match="is not a safetensors file"):
        read(tmp_path / "a.safetensors")


# Objects beside the weights are left out, and nothing that the file names is imported or run.


class Attributes(dict[str, Any]):
    """A dict with attributes, like that of Lightning."""


@dataclass
class Slotted:
    __slots__ = ("rate",)
    rate: float


OBJECTS = {
    "namespace": argparse.Namespace(lr=0.1, sizes=[1, 2]),
    "dict": Attributes(lr=0.1),
    "slots": Slotted(0.1),
    "defaultdict": defaultdict(list, a=[1]),
    "partial": functools.partial(print, 1, end=""),
    "class": torch.optim.Adam,
    "module": torch.nn.CrossEntropyLoss(),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_weights_beside_an_object_are_read(tmp_path: Path, name: str) -> None:
    content = {"hyper_parameters": {"one": OBJECTS[name]}, "state_dict": WEIGHTS}
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(pickle.UnpicklingError):  # or the test shows nothing
        torch.load(tmp_path / "last.ckpt", weights_only=True)
    weights, said = read(tmp_path / "last.ckpt")
    assert_same(weights)
    assert len(said) == 2 and "left out its objects of" in said[0]


def test_weights_of_a_checkpoint_of_lightning_are_read_without_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytorch-lightning 2.4 wrote the file, with save_hyperparameters() of a Namespace, an OmegaConf
    # configuration (2.3) and an enum.
    for name in ("omegaconf", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    weights, said = read(HERE / "lightning.ckpt")
    assert_same({name: weights[name] for name in WEIGHTS})
    assert "argparse.Namespace" in said[0]


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def call(function: str, *arguments: bytes) -> bytes:
    module, _, name = function.rpartition(".")
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def make_hostile(code: str, shell: str, module: str) -> dict[str, bytes]:
    """Pickles that run code or a shell's command when they are loaded, or import a module."""
    execute = b"cbuiltins\nexec\n"
    system = call("builtins.getattr", call("builtins.__import__", text("os")), text("system"))
    inner = f"cbuiltins\nexec\n(V{code}\ntR."
    return {
        "os": call("os.system", text(shell)),
        "posix": call("posix.system", text(shell)),
        "exec": call("builtins.exec", text(code)),
        "python-2": call("__builtin__.eval", text(f"exec({code!r})")),
        "subprocess": call("subprocess.getoutput", text(shell)),
        "inst": b"(" + text(code) + b"ibuiltins\nexec\n",
        "obj": b"(" + execute + text(code) + b"o",
        "stack-global": text("builtins") + text("exec") + b"\x93(" + text(code) + b"tR",
        "getattr": system + b"(" + text(shell) + b"tR",
        "partial": call("functools.partial", execute) + b"(" + text(code) + b"tR",
        # BUILD sets an attribute that the second BUILD calls.
        "build": b"ctypes\nSimpleNamespace\n)R}"
        + text("__setstate__")
        + execute
        + b"sb"
        + text(code)
        + b"b",
        "pickle": call("pickle.loads", call("_codecs.encode", text(inner), text("latin1"))),
        "rebuild": call(
            "torch._tensor._rebuild_from_type_v2",
            execute,
            b"N",
            b"(" + text(code) + b"t",
            b"}",
        ),
        "import": f"c{module}\nAnything\n".encode(),
    }


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Pickles by name; each leaves the file `ran` if anything of it runs or is imported."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    (tmp_path / "payload_module.py").write_text(f"{code}\nAnything = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "payload_module", raising=False)
    return make_hostile(code, f"touch {tmp_path}/ran", "payload_module")


def splice(path: Path, fragment: bytes) -> None:
    """Writes a checkpoint in which one value is what the fragment of a pickle makes."""
    torch.save({"evil": "PLACE", "state_dict": WEIGHTS}, path.with_suffix(".good"))
    with (
        zipfile.ZipFile(path.with_suffix(".good")) as good,
        zipfile.ZipFile(path, "w") as bad,
    ):
        for info in good.infolist():
            content = good.read(info)
            if info.filename.endswith("/data.pkl"):
                assert content.count(text("PLACE")) == 1
                content = content.replace(text("PLACE"), fragment)
            bad.writestr(info.filename, content)


CASES = list(make_hostile("", "", ""))


@guarantee(
    "Pickles and damaged ONNX files",
    "archive/sources/checkpoint.py",
    ('map_location="cpu", weights_only=True)\n' "    except Exception as error:"),
    ('map_location="cpu", weights_only=False)\n' "    except Exception as error:"),
)
@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_hostile_checkpoint_runs(
    tmp_path: Path, hostile: dict[str, bytes], name: str
) -> None:
    bare, file = b"\x80\x02" + hostile[name] + b".", tmp_path / "evil.ckpt"
    splice(file, hostile[name])
    try:
        weights, said = read(file)
    except WrongOption as error:
        assert "cannot be loaded with weights_only" in str(error)
    else:
        assert_same(weights)
        assert "no code of them ran" in said[0]
    file.write_bytes(bare)  # a pickle without a zip file around it
    with pytest.raises(WrongOption, match="evil.ckpt"):
        read(file)
    assert not (tmp_path / "ran").exists()
    # The fragment does run in pickle itself, or the test would show nothing.
    with contextlib.suppress(Exception):
        pickle.loads(bare)
    assert (tmp_path / "ran").exists()


def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ckpt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", bytes(100 << 20))
    with pytest.raises(WrongOption, match=r"a\.ckpt is refused: its .* bytes unpack to"):
        load_checkpoint(tmp_path / "a.ckpt")
