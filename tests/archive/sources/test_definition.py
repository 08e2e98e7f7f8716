"""Python files as `--model`: their classes and factories, and the modules that they import."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.archive.sources.definition import check_shadowing
from offpath.errors import ExpectedError
from tests.archive.conftest import load

SEVERAL = """
import torch

class Block(torch.nn.Linear):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Block(3, 4)

    def forward(self, images):
        return self.head(images.mean(dim=(2, 3)))

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must define exactly one class.*net.py:NAME.*classes found: Block, Net"),
        (":Other", "no class or function 'Other'; it has: Block, Net, make_model"),
        (":make_nothing", r"make_nothing\(\) in net.py returned a str; expected"),
        (":needs_more", r"needs_more\(\) in net.py fails without arguments: "),
        (":a b", "'a b' is not a Python name; expected .*net.py:NAME"),
    ],
)
def test_name_in_a_file_that_makes_no_model_is_said(several: Path, name: str, message: str) -> None:
    with pytest.raises(ExpectedError, match=message) as caught:
        load(f"{several}{name}")
    assert "\n" not in str(caught.value)


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
