from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offpath.archive.custom_handler import load_custom_handler
from offpath.errors import ExpectedError

IMPORT = "from offpath.handler.classifier import OffpathClassifier\n"
OWN = """
class Own(OffpathClassifier):
    def postprocess_item(self, result):
        return {result.predictions[0].label.upper(): 1.0}
"""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("my_handler.py", "class A: ...", "found none"),
        ("my_handler.py", "import no_such_module", "fails on import: ModuleNotFound"),
        ("my_handler.py", "raise SystemExit(1)", "fails on import: SystemExit"),
        ("my-handler.py", IMPORT + OWN, "rename the file"),
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
