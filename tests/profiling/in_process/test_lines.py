"""Which functions line_profiler is given."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.handler.errors import ExpectedError
from offpath.profiling.in_process.lines import (
    LineCollector,
    choose_functions,
    find_function,
)
from offpath.profiling.in_process.loaded_handler import LoadedHandler
from offpath.profiling.in_process.source_paths import shorten_path


def test_a_named_function_is_found_through_its_class():
    found = find_function("offpath.profiling.in_process.drive:Driver.run")
    assert found.__qualname__ == "Driver.run"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("no_such_module:f", "No module named", id="no-module"),
        pytest.param(
            "offpath.profiling.in_process.drive:f", "no attribute 'f'", id="no-function"
        ),
        pytest.param(
            "offpath.profiling.in_process.drive",
            "expected module:qualified",
            id="no-colon",
        ),
        pytest.param(
            "offpath.profiling.in_process.drive:Driver",
            "a Python function",
            id="a-class",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_said(name, said):
    with pytest.raises(ExpectedError, match=said):
        find_function(name)


def test_the_stock_handlers_stages_are_found_inside_torchserves_decorator():
    instance = ImageClassifier()
    module = sys.modules[ImageClassifier.__module__]
    handler = LoadedHandler(instance.handle, None, instance, module)
    functions = choose_functions(handler, [])
    assert [function.__qualname__ for function in functions] == [
        "VisionHandler.preprocess",
        "BaseHandler.inference",
        "ImageClassifier.postprocess",
    ]


def test_ours_are_the_functions_of_the_request_path():
    from offpath.handler.classifier import OffpathClassifier

    instance = OffpathClassifier()
    handler = LoadedHandler(instance.handle, None, instance, ModuleType("entry"))
    names = {function.__qualname__ for function in choose_functions(handler, [])}
    assert {"OffpathClassifier.handle", "Pipeline.preprocess", "decode_image"} <= names
    assert "OffpathClassifier.initialize" not in names


def count(n: int) -> int:
    total = 0
    for number in range(n):
        total += number
    return total


def test_lines_have_their_hits_and_source():
    collector = LineCollector([count])
    count(100)  # unwatched
    for _ in range(2):
        with collector.watching():
            count(10)
    lines = collector.finish(lambda file: "here.py", None)["lines"]
    hits = {line["source"].strip(): line["hits"] for line in lines}
    assert hits["total += number"] == 20
    assert {(line["function"], line["file"]) for line in lines} == {
        ("count", "here.py")
    }


def test_paths_are_shortened_by_the_first_root_that_holds_them():
    roots = ["/tmp/model", "/usr/lib/site-packages"]
    assert shorten_path("/tmp/model/handler/a.py", roots) == "handler/a.py"
    assert shorten_path("/usr/lib/site-packages/PIL/Image.py", roots) == "PIL/Image.py"
    assert shorten_path("/home/me/secret/work/mine.py", roots) == "work/mine.py"
    assert shorten_path("<frozen os>", roots) == "<frozen os>"
