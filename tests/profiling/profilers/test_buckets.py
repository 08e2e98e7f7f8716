"""Functions of real libraries, and the bucket to which each one counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import offpath
from offpath.profiling.profilers.buckets import BUCKETS, RULES, find_buckets


def builtin(name: str) -> tuple[str, int, str]:
    return "~", 0, name


def python(file: str, name: str) -> tuple[str, int, str]:
    return file, 1, name


@pytest.mark.parametrize(
    ("function", "bucket"),
    [
        (builtin("<built-in method io.open>"), "file I/O"),
        (builtin("<built-in method _io.open>"), "file I/O"),
        (builtin("<built-in method posix.unlink>"), "file I/O"),
        (python("tempfile.py", "NamedTemporaryFile"), "file I/O"),
        (builtin("<method 'recv_into' of '_socket.socket' objects>"), "S3"),
        (python("botocore/client.py", "_make_api_call"), "S3"),
        (python("urllib3/connectionpool.py", "urlopen"), "S3"),
        (builtin("<method 'decode' of 'ImagingDecoder' objects>"), "decode"),
        (builtin("<method 'convert' of 'ImagingCore' objects>"), "decode"),
        (python("PIL/JpegImagePlugin.py", "_open"), "decode"),
        (python("handler/image/decode.py", "_decode_jpeg"), "decode"),
        (builtin("<method 'resize' of 'ImagingCore' objects>"), "resize"),
        (builtin("<built-in method torch._C._nn._upsample_bilinear2d_aa>"), "resize"),
        (python("torch/nn/functional.py", "interpolate"), "resize"),
        (python("torchvision/transforms/functional.py", "center_crop"), "resize"),
        (python("torchvision/transforms/functional.py", "to_tensor"), "tensor"),
        (builtin("<built-in method torch.stack>"), "tensor"),
        (builtin("<method 'div' of 'torch._C.TensorBase' objects>"), "tensor"),
        (python("handler/model/batch_runner.py", "put"), "tensor"),
        (python("handler/model/batch_runner.py", "classify"), "forward"),
        (python("handler/model/engines/open_vino.py", "infer"), "forward"),
        (builtin("<built-in method torch.conv2d>"), "forward"),
        (builtin("<built-in method torch._C._nn.linear>"), "forward"),
        (python("torch/nn/modules/module.py", "_call_impl"), "forward"),
        (python("json/encoder.py", "iterencode"), "serialise"),
        (builtin("<method 'tolist' of 'torch._C.TensorBase' objects>"), "serialise"),
        (python("handler/response.py", "encode_prediction"), "serialise"),
        (python("logging/__init__.py", "info"), "logging"),
        (python("ts/metrics/metrics_store.py", "add_time"), "logging"),
        (python("handler/prediction_log/spool.py", "append"), "logging"),
        (builtin("<built-in method time.sleep>"), "other"),
        (python("my/handler.py", "preprocess"), "other"),
    ],
)
def test_a_function_counts_to_its_bucket(function: Any, bucket: str):
    stats: Any = {function: (1, 1, 1.0, 1.0, {})}
    assert find_buckets(stats) == {function: bucket}
    assert bucket in BUCKETS


@pytest.mark.parametrize(
    ("helper", "caller", "bucket"),
    [
        ("<method 'get' of 'dict' objects>", "botocore/parsers.py:parse", "S3"),
        ("<method 'read' of '_io.BytesIO' objects>", "PIL/ImageFile.py:load", "decode"),
        (
            "<method 'write' of '_io.TextIOWrapper' objects>",
            "logging/__init__.py:emit",
            "logging",
        ),
        (
            "<built-in method posix.write>",
            "handler/prediction_log/segment.py:append",
            "logging",
        ),
        ("<built-in method posix.write>", "my/handler.py:preprocess", "file I/O"),
        (
            "<method 'mean' of 'torch._C.TensorBase' objects>",
            "near_free.py:forward",
            "forward",
        ),
    ],
)
def test_a_helper_counts_to_its_callers_bucket(helper: str, caller: str, bucket: str):
    below, above = builtin(helper), python(*caller.split(":"))
    stats: Any = {
        above: (1, 1, 0.1, 1.1, {}),
        below: (1, 1, 1.0, 1.0, {above: (1, 1, 1.0, 1.0)}),
    }
    assert find_buckets(stats)[below] == bucket


def test_a_helper_with_several_callers_counts_to_the_one_with_most_of_its_time():
    s3, log = python("botocore/auth.py", "sign"), python("logging/__init__.py", "info")
    helper = builtin("<built-in method builtins.isinstance>")
    edges = {s3: (9, 9, 0.2, 0.2), log: (1, 1, 0.3, 0.3)}
    stats: Any = {
        s3: (1, 1, 0.1, 1.0, {}),
        log: (1, 1, 0.1, 1.0, {}),
        helper: (10, 10, 0.5, 0.5, edges),
    }
    assert find_buckets(stats)[helper] == "logging"


def test_the_rules_name_modules_of_the_handler_that_are_there():
    patterns = [file.pattern for _, file, _ in RULES]
    groups = re.findall(r"handler/\(\?:\\w\+/\)\*\(+([\w|]+)\)\\\.py", " ".join(patterns))
    names = {name for group in groups for name in group.split("|")}
    there = {path.stem for path in Path(offpath.__file__).parent.glob("handler/**/*.py")}
    assert len(names) > 8 and names <= there
