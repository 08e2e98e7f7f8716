from __future__ import annotations

import dataclasses
import sys
import zipfile
from pathlib import Path

import pytest

from offpath.archive.build import build_archive
from offpath.archive.custom_handler import load_custom_handler
from offpath.errors import ExpectedError
from tests.archive.conftest import MakeSpec

IMPORT = "from offpath.handler.classifier import OffpathClassifier\n"
OWN = """
class Own(OffpathClassifier):
    def postprocess_item(self, result):
        return {result.predictions[0].label.upper(): 1.0}
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "my_handler.py"
    file.write_text(IMPORT + "class Helper: ...\n" + OWN)
    return file


def test_one_of_several_classes_is_named(own_file: Path) -> None:
    own_file.write_text(own_file.read_text() + OWN.replace("Own", "Other"))
    assert load_custom_handler(f"{own_file}:Other").mark == "my_handler:Other"
    with pytest.raises(ExpectedError, match="found Own, Other; choose one: --handler my_handler"):
        load_custom_handler(str(own_file))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("my_handler.py", "class A: ...", "found none"),
        ("my_handler.py", "import no_such_module", "fails on import: ModuleNotFound"),
        ("my_handler.py", "raise SystemExit(1)", "fails on import: SystemExit"),
        ("my-handler.py", IMPORT + OWN, "rename the file"),
        ("classifier_entry.py", IMPORT + OWN, "would shadow"),
        ("my_handler.txt", IMPORT + OWN, "there is no Python file"),
        ("my_handler.py:Nope", IMPORT + OWN, "my_handler.py defines Own"),
    ],
)
def test_handler_that_cannot_be_packed_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises(ExpectedError, match=message):
        load_custom_handler(str(tmp_path / name))
    assert "my_handler" not in sys.modules


def test_neighbours_are_found_when_it_is_checked(
    make_spec: MakeSpec, own_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "thresholds.py").write_text("HIGH = 0.8")
    own_file.write_text("import thresholds\n" + own_file.read_text())
    spec = dataclasses.replace(
        make_spec(extra_files=(tmp_path / "thresholds.py",)),
        handler=load_custom_handler(str(own_file)),
    )
    with zipfile.ZipFile(build_archive(spec, tmp_path / "store").path) as mar:
        assert {"my_handler.py", "thresholds.py"} <= set(mar.namelist())
