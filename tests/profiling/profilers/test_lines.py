"""The choice of functions for line_profiler."""

from __future__ import annotations

import pytest
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.handler.classifier import OffpathClassifier
from offpath.profiling.profilers.collector import LoadedHandler
from offpath.profiling.profilers.handler_process import shorten_path
from offpath.profiling.profilers.threads import choose_functions


def choose(handler: type) -> list[str]:
    instance = handler()
    functions = choose_functions(LoadedHandler(instance.handle, None))
    return [function.__qualname__ for function in functions]


def test_the_stock_handlers_stages_are_found_inside_torchserves_decorator():
    assert choose(ImageClassifier) == [
        "VisionHandler.preprocess",
        "BaseHandler.inference",
        "ImageClassifier.postprocess",
    ]


def test_ours_are_the_functions_of_the_request_path():
    names = choose(OffpathClassifier)
    assert {"OffpathClassifier.handle", "Pipeline.preprocess", "decode_image"} <= set(names)
    assert "OffpathClassifier.initialize" not in names


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/tmp/model/handler/a.py", "handler/a.py"),
        ("/usr/lib/site-packages/PIL/Image.py", "PIL/Image.py"),
        ("/home/me/secret/work/mine.py", "work/mine.py"),
        ("<frozen os>", "<frozen os>"),
    ],
)
def test_paths_are_shortened_by_the_first_root_that_holds_them(path, short):
    assert shorten_path(path, ["/tmp/model", "/usr/lib/site-packages"]) == short
