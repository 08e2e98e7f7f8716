"""`--model` in each of its forms, and what is said of those that cannot be used."""

from __future__ import annotations

import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.model_probe import count_classes
from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.image.geometry import InputGeometry

GEOMETRY = InputGeometry(32, 36)
SEVERAL = """
import torch
LATE = None

class Block(torch.nn.Linear):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Block(3, 4)

    def forward(self, pictures):
        return self.head(pictures.mean(dim=(2, 3)))

def make_model():
    from late import CLASSES
    net = Net()
    net.head = Block(3, CLASSES)
    return net

def make_nothing():
    return "no model"

def needs_more(classes):
    return Net()
"""


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """`net.py` with helper classes and factories, and `late.py`, imported when one is called."""
    (tmp_path / "net.py").write_text(SEVERAL)
    (tmp_path / "late.py").write_text("CLASSES = 6\n")
    return tmp_path / "net.py"


def load(
    model: object, weights: str | None = "random"
) -> tuple[ModelSource, list[str]]:
    said: list[str] = []
    return load_model_source(str(model), weights, said.append), said


def run_definition(source: ModelSource, folder: Path) -> torch.nn.Module:
    """What TorchServe does: imports the archive's definition and calls its one class."""
    assert source.definition is not None
    names: dict[str, object] = {}
    for name, file in source.files.items():
        (folder / name).write_text(file.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        exec(compile(source.definition, "offpath_model.py", "exec"), names)
        made = names["OffpathModel"]()  # type: ignore[operator]
        for name in source.files:
            sys.modules.pop(name.removesuffix(".py"), None)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "classes", "files"),
    [("Net", 4, ["net.py"]), ("make_model", 6, ["late.py", "net.py"])],
)
def test_class_or_factory_of_a_module_is_taken_with_what_it_imports(
    several: Path, tmp_path: Path, name: str, classes: int, files: list[str]
) -> None:
    source, said = load(f"{several}:{name}")
    assert count_classes(source.module, GEOMETRY) == classes
    assert sorted(source.files) == files
    assert any("late.py" in line for line in said) == ("late.py" in files)
    assert source.model_file == Path("offpath_model.py")
    (tmp_path / "archive").mkdir()
    made = run_definition(source, tmp_path / "archive")
    made.load_state_dict(dict(source.weights or {}))
    pictures = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(made(pictures), source.module(pictures))


def test_file_that_is_named_and_imported_goes_along_once(
    several: Path, tmp_path: Path
) -> None:
    source, _ = load(f"{several}:make_model")
    config = make_model_config(load_preset("cpu"), {}, {})
    extra = (tmp_path / "late.py",)
    spec = ArchiveSpec("net", "1.0", source, None, "", config, extra)
    with zipfile.ZipFile(build_archive(spec, tmp_path / "store").path) as file:
        assert file.namelist().count("late.py") == 1


def test_modules_of_a_definition_are_not_left_imported(
    several: Path, tmp_path: Path
) -> None:
    path = list(sys.path)
    load(f"{several}:make_model")
    assert sys.path == path and not {"net", "late"} & {*sys.modules}
    (tmp_path / "late.py").write_text("CLASSES = 9\n")
    source, _ = load(f"{several}:make_model")
    assert count_classes(source.module, GEOMETRY) == 9


def test_factory_is_random_in_the_same_way_each_time(several: Path) -> None:
    first, second = (load(f"{several}:make_model")[0].weights for _ in range(2))
    assert first is not None and second is not None
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must define exactly one class.*net.py:NAME.*classes found: Block, Net"),
        (":Other", "no class or function 'Other'; it has: Block, Net, make_model"),
        (":LATE", "no class or function 'LATE'"),
        (":make_nothing", r"make_nothing\(\) in net.py returned a str; expected"),
        (":needs_more", r"needs_more\(\) in net.py fails without arguments: "),
        (":a b", "'a b' is not a Python name; expected .*net.py:NAME"),
        (":", "'' is not a Python name"),
    ],
)
def test_name_in_a_file_that_makes_no_model_is_said(
    several: Path, name: str, message: str
) -> None:
    with pytest.raises(ExpectedError, match=message) as caught:
        load(f"{several}{name}")
    assert "\n" not in str(caught.value)


def test_neighbour_that_would_hide_a_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SEVERAL.replace("from late", "from zstandard"))
    (tmp_path / "zstandard").mkdir()
    (tmp_path / "zstandard" / "__init__.py").write_text("CLASSES = 2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "zstandard", raising=False)
        with pytest.raises(ExpectedError, match="zstandard.py would shadow"):
            load(f"{tmp_path / 'net.py'}:make_model")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.stem(pictures)).mean((2, 3)))


def export(path: Path, batch: bool = True, size: int = 32) -> Path:
    shapes = ({0: torch.export.Dim("batch")},) if batch else None
    pictures = torch.zeros(2 if batch else 1, 3, size, size)
    program = torch.export.export(Small().eval(), (pictures,), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def test_exported_program_is_a_model(tmp_path: Path) -> None:
    program = export(tmp_path / "net.pt2")
    source, _ = load(program, None)
    assert count_classes(source.module, GEOMETRY) == 5
    assert (source.weights, source.script_file) == (None, None)
    assert source.files == {"program.pt2": program}
    assert source.model_file is not None and source.model_file.name == "exported.py"
    with pytest.raises(
        ExpectedError, match="torch.export program holds its own weights"
    ):
        load(program)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": False}, "one image at a time; export it with a dynamic batch"),
        ({"size": 64}, "it takes 64 x 64 pixels; pass --set image_size=64"),
    ],
)
def test_exported_program_of_another_input_is_refused(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    source, _ = load(export(tmp_path / "net.pt2", **options), None)
    with pytest.raises(ExpectedError, match=message) as caught:
        count_classes(source.module, GEOMETRY)
    assert "\n" not in str(caught.value)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize(
    "member", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0"]
)
def test_pickled_code_in_a_program_never_runs(tmp_path: Path, member: str) -> None:
    sprung, good = tmp_path / "sprung", export(tmp_path / "net.pt2")
    torch.save((Trap(sprung),), tmp_path / "trap")
    content = (tmp_path / "trap").read_bytes()
    if "opaque" in member:
        content = pickle.dumps(Trap(sprung))
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(
        tmp_path / "evil.pt2", "w"
    ) as new:
        names = {name.partition("/")[2]: name for name in old.namelist()}
        for inside in {**names, member: ""}:
            data = content if inside == member else old.read(names[inside])
            new.writestr(f"evil/{inside}", data)
    with pytest.raises(ExpectedError, match="evil.pt2"):
        load(tmp_path / "evil.pt2", None)
    assert not sprung.exists()


def test_torchvision_model_takes_its_classes_from_the_weights(tmp_path: Path) -> None:
    from torchvision.models import get_model

    weights = get_model("squeezenet1_1", num_classes=6).state_dict()
    torch.save({"state_dict": weights}, tmp_path / "own.pt")
    source, said = load("torchvision:squeezenet1_1", str(tmp_path / "own.pt"))
    assert count_classes(source.module, InputGeometry()) == 6
    assert source.definition is not None and "num_classes=6" in source.definition
    assert source.labels is None
    assert source.handler["image_size"] == 224
    assert source.handler["interpolation"] == "bilinear"
    assert any("preprocessing of its published weights" in line for line in said)
    made = run_definition(source, tmp_path)
    made.load_state_dict(dict(source.weights or {}))


@pytest.mark.parametrize(
    ("model", "weights", "kind", "message"),
    [
        ("torchvision:resnet51", "random", WrongOption, "similar names: resnet50"),
        ("torchvision:", "random", WrongOption, "no such classifier"),
        ("torchvision:fcn_resnet50", "random", WrongOption, "no such classifier"),
        (
            "torchvision:resnet18",
            None,
            ExpectedError,
            "needs --weights FILE, --weights pretrain",
        ),
        ("torchvision:resnet18", "no.pt", ExpectedError, "no such file"),
    ],
)
def test_model_that_torchvision_lacks_is_said(
    model: str, weights: str | None, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load(model, weights)


def test_download_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import ResNet18_Weights

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", fail)
    with pytest.raises(ExpectedError, match="downloaded .no route.; .*--weights FILE"):
        load("torchvision:resnet18", "pretrained")


def test_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ExpectedError, match="pip install timm"):
        load("timm:resnet18")


def test_timm_model_takes_classes_and_channels_from_the_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=7, in_chans=1)
    torch.save(model.state_dict(), tmp_path / "own.pt")
    source, _ = load("timm:resnet10t", str(tmp_path / "own.pt"))
    assert count_classes(source.module, InputGeometry(176, 176, channels=1)) == 7
    assert source.definition is not None
    assert "num_classes=7, in_chans=1" in source.definition.replace(
        "in_chans=1, num_classes=7", "num_classes=7, in_chans=1"
    )
    assert source.handler["interpolation"] in ("bicubic", "bilinear")
    with pytest.raises(WrongOption, match="no such classifier"):
        load("timm:resnet10x")
