"""Calls of a handler and the work of its pools, by function and package."""

from __future__ import annotations

import pytest

from offpath.profiling.profilers.threads import find_package


@pytest.mark.parametrize(
    ("file", "name", "package"),
    [
        ("botocore/client.py", "_make_api_call", "botocore"),
        ("handler/image/decode.py", "decode_image", "handler"),
        ("mine.py", "handle", "mine"),
        ("json/encoder.py", "iterencode", "Python"),
        ("tempfile.py", "NamedTemporaryFile", "Python"),
        ("<frozen os>", "fsdecode", "Python"),
        ("", "<built-in method torch._C._nn.linear>", "torch"),
        ("", "<method 'div' of 'torch._C.TensorBase' objects>", "torch"),
        ("", "<method 'get' of 'dict' objects>", "Python"),
        ("", "<built-in method posix.unlink>", "Python"),
    ],
)
def test_a_function_counts_to_its_top_package(file: str, name: str, package: str):
    assert find_package(file, name) == package
