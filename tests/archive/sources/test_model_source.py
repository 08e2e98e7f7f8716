from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.model_probe import count_classes
from offpath.archive.sources.definition import check_shadowing
from offpath.archive.sources.model_source import load_model_source
from offpath.handler.errors import ExpectedError
from offpath.handler.image.geometry import InputGeometry


def test_own_model_is_loaded_with_its_weights(
    model_file: Path, weights_file: Path
) -> None:
    source = load_model_source(str(model_file), str(weights_file))
    assert source.model_file == model_file
    assert count_classes(source.module, InputGeometry()) == 3
    answer = source.module(torch.full((1, 3, 8, 8), 2.0))
    assert answer.tolist() == [[2.0, 2.0, 2.0]]


def test_random_weights_are_the_same_each_time(model_file: Path) -> None:
    torch.manual_seed(1)
    first = load_model_source(str(model_file), "random").weights
    torch.manual_seed(2)
    second = load_model_source(str(model_file), "random").weights
    assert first is not None and second is not None
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("model", "weights", "message"),
    [
        (
            "no-such.py",
            None,
            "no such file or model; accepted: efficientnet-lite0, resnet50",
        ),
        ("", None, "no such file or model"),
        ("MODEL", None, "needs --weights FILE"),
        ("MODEL", "pretrained", "needs --weights FILE"),
        ("MODEL", "no-such.pt", "no such file; accepted: a file, pretrained or random"),
        ("WEIGHTS", None, "pass a state dict as --weights"),
    ],
)
def test_wrong_choice_says_what_to_pass(
    model_file: Path, weights_file: Path, model: str, weights: str | None, message: str
) -> None:
    named = {"MODEL": str(model_file), "WEIGHTS": str(weights_file)}
    with pytest.raises(ExpectedError, match=message):
        load_model_source(named.get(model, model), weights)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("with_torch", [True, False], ids=["torch.save", "pickle"])
def test_pickled_code_is_refused_and_never_runs(
    model_file: Path, tmp_path: Path, with_torch: bool
) -> None:
    sprung, file = tmp_path / "sprung", tmp_path / "evil.pt"
    if with_torch:
        torch.save({"head.weight": Trap(sprung)}, file)
    else:
        file.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(
        ExpectedError, match="weights_only=True .*save only the state dict"
    ):
        load_model_source(str(model_file), str(file))
    assert not sprung.exists()


def test_whole_pickled_model_says_to_save_the_state_dict(
    model_file: Path, tmp_path: Path
) -> None:
    torch.save(torch.nn.Linear(3, 3), tmp_path / "whole.pt")
    with pytest.raises(ExpectedError, match=r"torch\.save\(model\.state_dict\(\)"):
        load_model_source(str(model_file), str(tmp_path / "whole.pt"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"state_dict": {}, "epoch": 3}, id="checkpoint"),
        pytest.param([torch.zeros(1)], id="list"),
        pytest.param({0: torch.zeros(1)}, id="keys-that-are-no-text"),
        pytest.param(torch.zeros(3), id="tensor"),
    ],
)
def test_file_that_holds_something_else_is_refused(
    model_file: Path, tmp_path: Path, content: object
) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ExpectedError, match="is not a state dict"):
        load_model_source(str(model_file), str(tmp_path / "other.pt"))


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04junk", b"junk", b"PK\x05\x06" * 9]
)
def test_junk_weights_are_refused(
    model_file: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "junk.pt").write_bytes(content)
    with pytest.raises(ExpectedError, match="junk.pt"):
        load_model_source(str(model_file), str(tmp_path / "junk.pt"))
    with pytest.raises(ExpectedError, match="junk.pt"):
        load_model_source(str(tmp_path / "junk.pt"), None)


def test_keys_that_do_not_fit_are_named(
    model_file: Path, tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    del weights["head.bias"]
    weights["head.weight"] = torch.zeros(5, 3)
    weights.update({f"module.layer{i}": torch.zeros(1) for i in range(7)})
    torch.save(weights, tmp_path / "other.pt")
    with pytest.raises(ExpectedError) as caught:
        load_model_source(str(model_file), str(tmp_path / "other.pt"))
    message = str(caught.value)
    assert "missing: head.bias;" in message
    assert "unexpected: module.layer0, module.layer1" in message
    assert "module.layer6" not in message and ", ..." in message
    assert "head.weight is [5, 3], the model has [3, 3]" in message


def test_ordered_dict_and_half_precision_are_accepted(
    model_file: Path, tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    halves = OrderedDict((key, value.half()) for key, value in weights.items())
    torch.save(halves, tmp_path / "half.pt")
    source = load_model_source(str(model_file), str(tmp_path / "half.pt"))
    assert count_classes(source.module, InputGeometry(32)) == 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param("x = 1", "classes found: none", id="no-class"),
        pytest.param(
            "class A: pass\nclass B: pass", "classes found: A, B", id="two-classes"
        ),
        pytest.param("class A: pass", "exactly one class", id="no-module"),
        pytest.param("import no_such_module", "No module named", id="import-fails"),
        pytest.param("class A(:", "SyntaxError", id="syntax"),
        pytest.param("raise SystemExit(0)", "SystemExit", id="exits"),
        pytest.param(
            "import torch\nclass A(torch.nn.Module):\n"
            "    def __init__(self, n): super().__init__()",
            "fails without arguments",
            id="needs-arguments",
        ),
    ],
)
def test_definition_that_torchserve_could_not_load_is_refused(
    tmp_path: Path, code: str, message: str
) -> None:
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(ExpectedError, match=message):
        load_model_source(str(tmp_path / "net.py"), "random")


def test_name_with_dots_is_refused(tmp_path: Path, model_file: Path) -> None:
    dotted = model_file.rename(tmp_path / "net.v2.py")
    with pytest.raises(ExpectedError, match="net.v2.py.*rename"):
        load_model_source(str(dotted), "random")


@pytest.mark.parametrize(
    "name",
    "ts.py torch.py json.py offpath.py logging.py numpy.py PIL.py yaml.py captum.py "
    "classifier_entry.py zstandard.py torch.pyc json.cpython-311-x86_64-linux-gnu.so".split(),
)
def test_file_that_would_hide_a_module_is_refused(tmp_path: Path, name: str) -> None:
    # These hide nothing.
    for other in ("layers.py", "torch.txt", "json", "my_json.py", "ts.csv"):
        check_shadowing(tmp_path / other)
    with pytest.raises(ExpectedError, match=f"{name} would shadow the module"):
        check_shadowing(tmp_path / name)


def test_model_file_that_would_hide_a_module_is_refused(model_file: Path) -> None:
    hiding = model_file.rename(model_file.with_name("json.py"))
    with pytest.raises(ExpectedError, match="would shadow the module 'json'"):
        load_model_source(str(hiding), "random")


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("return pictures.mean()", r"returned \[\]"),
        ("return pictures", r"returned \[2, 3, 224, 224\]"),
        (
            "return pictures[:1].mean((2, 3))",
            r"for 2 images this model returned \[1, 3\]",
        ),
        ("return pictures.mean((2, 3)) > 0", "returned bool .class indices"),
        ("raise ValueError('odd\\n\\nand long')", r"accept a float32 .*: odd$"),
        ("return pictures.mean((2, 3)), 1", "returned tuple"),
        ("raise ValueError('odd')", r"does not accept a float32 .*: odd"),
    ],
)
def test_model_that_is_no_classifier_is_refused(
    tmp_path: Path, forward: str, message: str
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        f"    def forward(self, pictures):\n        {forward}\n"
    )
    source = load_model_source(str(tmp_path / "net.py"), "random")
    with pytest.raises(ExpectedError, match=message):
        count_classes(source.module, InputGeometry())


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
