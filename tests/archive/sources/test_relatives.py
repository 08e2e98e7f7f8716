"""Archives whose model does more than others: converted as TorchServe loads it, or refused."""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.build import save_weights
from offpath.archive.model_probe import choose_activation, count_classes
from offpath.archive.sources.definition import read_definition
from offpath.archive.sources.model_source import load_model_source
from offpath.archive.sources.stock_archive import unpack
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from offpath.handler.model.weights import make_with_weights
from tests.support.hostile_archives import STOCK, pack

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
        self.norm = torch.nn.BatchNorm2d(3)
        self.fc = {layer}

    def forward(self, images):
        return self.fc(self.norm(images).mean((2, 3)))

    {method}
"""
OWN_STATE = """
    def state_dict(self, *args, **kwargs):
        return {"net." + k: v for k, v in super().state_dict(*args, **kwargs).items()}
"""
UNWRAPS = """
    def load_state_dict(self, checkpoint, strict=True):
        weights = checkpoint["ours"]["net"]
        return super().load_state_dict({k[2:]: v for k, v in weights.items()}, strict)
"""
HOOKED = """
    def _load_from_state_dict(self, state_dict, prefix, *args):
        for key in [key for key in state_dict if key.startswith("head.")]:
            state_dict["fc." + key[5:]] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)
"""
VERSIONED = """
    _version = 2

    def load_state_dict(self, state_dict, strict=True):
        return super().load_state_dict(state_dict, strict)

    def _load_from_state_dict(self, state_dict, prefix, metadata, *args):
        if metadata.get("version", 1) < 2:
            state_dict["fc.bias"] = state_dict["fc.bias"] + 1
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)
"""
OWN_EVAL = """
    def eval(self):
        self.train(False)
        self.fc.weight.data.mul_(2)
"""
LOSES_SELF = """
    def train(self, mode=True):
        super().train(mode)
"""


def write_net(init: str = "", layer: str = "torch.nn.Linear(3, 4)", method: str = "") -> str:
    return NET.format(init=init, layer=layer, method=method.lstrip())


def make_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "norm.weight": torch.rand(3),
        "norm.bias": torch.rand(3),
        "norm.running_mean": torch.rand(3),
        "norm.running_var": torch.rand(3),
        "norm.num_batches_tracked": torch.tensor(7),
        "fc.weight": torch.rand(4, 3),
        "fc.bias": torch.rand(4),
    }


def rename(rule: Callable[[str], str]) -> dict[str, torch.Tensor]:
    return {rule(name): value for name, value in make_weights().items()}


def give_version() -> dict[str, torch.Tensor]:
    weights = OrderedDict(make_weights())
    weights._metadata = {"": {"version": 2}}
    return weights


def lack_counters() -> dict[str, torch.Tensor]:
    weights = make_weights()
    del weights["norm.num_batches_tracked"]
    return weights


def make_old(folder: Path, text: str, checkpoint: Any, legacy: bool = False) -> Path:
    torch.save(checkpoint, folder / "w.pth", _use_new_zipfile_serialization=not legacy)
    files = {"net.py": text.encode(), "net.pt": (folder / "w.pth").read_bytes()}
    files["sizes.txt"] = b"4"
    pack(folder / "old.mar", {"model": STOCK}, files)
    return folder / "old.mar"


def run_as_torchserve(old: Path, folder: Path, images: torch.Tensor) -> torch.Tensor:
    """Loads the archive's model with the calls of `_load_pickled_model` in base_handler.py."""
    unpack(old, folder)
    model = read_definition(folder / "net.py", None).make()
    model.load_state_dict(torch.load(folder / "net.pt", weights_only=True))
    model.eval()
    with torch.inference_mode():
        return model(images)


CONVERTED = {
    "own state_dict": (write_net(method=OWN_STATE), make_weights()),
    "unwraps its checkpoint": (
        write_net(method=UNWRAPS),
        {"ours": {"net": rename(lambda name: f"x.{name}")}, "epoch": 3},
    ),
    "renames in a hook": (
        write_net(method=HOOKED),
        rename(lambda name: name.replace("fc.", "head.")),
    ),
    "knows its version": (write_net(method=VERSIONED), give_version()),
    "does not know its version": (write_net(method=VERSIONED), make_weights()),
    "before num_batches_tracked": (write_net(), lack_counters()),
    "lazy layer": (write_net(layer="torch.nn.LazyLinear(4)"), make_weights()),
    "own eval": (write_net(method=OWN_EVAL), make_weights()),
    "train returns nothing": (write_net(method=LOSES_SELF), make_weights()),
    "opens a file by name": (write_net(init="int(open('sizes.txt').read())"), make_weights()),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("case", CONVERTED)
def test_the_worker_gets_the_model_that_torchserve_loads(
    tmp_path: Path, case: str, legacy: bool
) -> None:
    old = make_old(tmp_path, *CONVERTED[case], legacy)
    images = torch.rand(2, 3, 32, 32)
    config = HandlerConfig.from_mapping({"image_size": 32}, environ={})
    before = unpack(old, tmp_path / "unpacked")
    source = load_model_source(str(before.model), str(before.weights))
    # The builder's own runs of the model change nothing.
    assert count_classes(source.module, config.input_geometry) == 4
    shown = (images * 255).byte().permute(0, 2, 3, 1).numpy()
    assert choose_activation(source.module, config, shown, print) == "softmax"
    (before.model.parent / "weights.pt").write_bytes(save_weights(source))
    make = read_definition(before.model, None).make
    model = make_with_weights(make, str(before.model.parent / "weights.pt"))
    model.eval()
    with torch.inference_mode():
        answers = model(images)
    assert torch.equal(answers, run_as_torchserve(old, tmp_path / "theirs", images))


def test_a_checkpoint_that_its_class_cannot_load_is_refused(tmp_path: Path) -> None:
    old = make_old(tmp_path, write_net(method=UNWRAPS), make_weights())
    old = unpack(old, tmp_path / "unpacked")
    with pytest.raises(WrongOption, match="own load_state_dict fails with KeyError: 'ours'"):
        load_model_source(str(old.model), str(old.weights))


def test_weights_of_a_changed_model_say_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(write_net())
    weights = {
        f"model.{key.replace('fc.', 'fc.1.')}": value for key, value in make_weights().items()
    }
    torch.save({**weights, "criterion.pos_weight": torch.ones(1)}, tmp_path / "net.pt")
    message = (
        "Missing.*fc.weight.*Unexpected.*fc.1.weight.*trained .head, .*--model net.py:FUNCTION"
    )
    with pytest.raises(WrongOption, match=message):
        load_model_source(str(tmp_path / "net.py"), str(tmp_path / "net.pt"))


def test_a_model_that_downloads_reaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/w.pth"
        text = write_net(init=f"torch.hub.load_state_dict_from_url({url!r})")
        old = unpack(make_old(tmp_path, text, make_weights()), tmp_path / "unpacked")
        with pytest.raises(WrongOption, match="opens .*make the model without pretrained"):
            load_model_source(str(old.model), str(old.weights))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_machine_code_for_one_device_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = {"modelName": "m", "handler": "image_classifier", "serializedFile": "net.so"}
    pack(tmp_path / "old.mar", {"model": model}, {"net.so": b"ELF"})
    with pytest.raises(WrongOption, match="machine code for one device .net.so.*FILE.pt2"):
        unpack(tmp_path / "old.mar", tmp_path / "unpacked")
