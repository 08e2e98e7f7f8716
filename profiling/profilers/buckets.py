"""Sorts functions into kinds of work: file I/O, S3, decode, resize, tensor, forward and others.

Rules match the function's file and name, and the first match wins. Functions of general use (dict
methods, `re`, `isinstance`) match no rule and count to the bucket of the caller that spends most
time in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from offpath.profiling.profilers.call_profiler import Function, Stats

FILE_IO, S3, DECODE, RESIZE = "file I/O", "S3", "decode", "resize"
TENSOR, FORWARD, SERIALISE, LOGGING = "tensor", "forward", "serialise", "logging"
OTHER = "other"
BUCKETS = (FILE_IO, S3, DECODE, RESIZE, TENSOR, FORWARD, SERIALISE, LOGGING, OTHER)

# (bucket, file, name): both regular expressions must be found. Built-ins have no file.
_RULES = [
    # The S3 client and everything below it.
    (S3, r"^(boto3|botocore|aiobotocore|s3transfer|urllib3|aiohttp)/", r""),
    (S3, r"^(http/|socket\.py|ssl\.py|email/)", r""),
    (S3, r"^$", r"_socket|_ssl|select\.|'(poll|epoll)' objects|getaddrinfo"),
    # Decoding. Pillow reads lazily, so its loaders belong here too.
    (
        DECODE,
        r"^$",
        r"ImagingDecoder|decode_jpeg|'convert' of 'ImagingCore'|_imaging\.\w*decoder",
    ),
    (DECODE, r"^PIL/(ImageFile|\w+ImagePlugin|ImageOps|ExifTags|TiffTags)\.py", r""),
    (
        DECODE,
        r"^PIL/Image\.py",
        r"^(open|_open_core|draft|load|convert|preinit|init|verify)$",
    ),
    (
        DECODE,
        r"^(simplejpeg/|handler/(?:\w+/)*(decode|decode_cost|npy|nvjpeg)\.py)",
        r"",
    ),
    (DECODE, r"^torchvision/io/", r""),
    # Resizing and cropping.
    (
        RESIZE,
        r"^$",
        r"'(resize|reduce|crop|box_blur)' of 'ImagingCore'|upsample|interpolate",
    ),
    (RESIZE, r"^PIL/Image\.py", r"^(resize|crop|_crop|reduce|thumbnail|transform)$"),
    (
        RESIZE,
        r"^torchvision/transforms/",
        r"^(resize|crop|center_crop|\w*_size|_compute\w*)$",
    ),
    (RESIZE, r"^torch/nn/functional\.py", r"^interpolate$"),
    (RESIZE, r"^handler/(?:\w+/)*(torch_transform|transform)\.py", r""),
    # Pixels become tensors, and tensors move.
    (
        TENSOR,
        r"^$",
        r"ImagingEncoder|numpy|from_numpy",
    ),
    (TENSOR, r"^torchvision/transforms/", r""),
    (TENSOR, r"^PIL/Image\.py", r"^(tobytes|__array_interface__)$"),
    (TENSOR, r"^handler/(?:\w+/)*(batch_runner)\.py", r"^(put\w*|grow|_allocate)$"),
    (TENSOR, r"^numpy/", r""),
    # The model.
    (
        FORWARD,
        r"^$",
        r"conv\d?d|linear|batch_norm|relu|silu|pool|matmul|addmm|softmax|topk",
    ),
    (
        FORWARD,
        r"^(torch/nn/|archive/models/|efficientnet_lite_pytorch/|openvino/|onnxruntime/)",
        r"",
    ),
    (
        FORWARD,
        r"^handler/(?:\w+/)*((batch_runner|normalise)\.py|model/engines/)",
        r"",
    ),
    (FORWARD, r"", r"^(inference|forward|_run_on_cuda)$"),
    # Text.
    (SERIALISE, r"^(json|base64|yaml|orjson|pickle)\b", r""),
    (
        SERIALISE,
        r"^$",
        r"_json|orjson|'tolist' of|b64decode|b64encode|a2b_|b2a_|Scanner|Encoder",
    ),
    (SERIALISE, r"^handler/(?:\w+/)*(response)\.py", r""),
    (SERIALISE, r"^ts/utils/util\.py", r""),
    # Logs and metrics.
    (LOGGING, r"^(logging/|ts/metrics/|handler/(?:\w+/)*(metrics)\.py)", r""),
    (LOGGING, r"^handler/prediction_log/", r""),
    (LOGGING, r"^$", r"builtins\.print"),
    # Files.
    (
        FILE_IO,
        r"^(<frozen )?(tempfile|shutil|pathlib|glob|os|genericpath|posixpath)\b",
        r"",
    ),
    (
        FILE_IO,
        r"^$",
        r"\b(_?io|posix|builtins)\.(open\w*|unlink|remove|stat|lstat|mkdir|rename)",
    ),
    (FILE_IO, r"^$", r"\b(posix|mmap|fcntl)\.(?!write>|fspath)|scandir"),
]
# The same, for functions that count to their caller's bucket if `_TAKING` lists it.
_BORROWED = [
    # The prediction log's append, like every other log's, is logging.
    (FILE_IO, r"^$", r"of '_io\.\w+' objects|\bposix\.write>"),
    (TENSOR, r"^$", r"torch|Tensor"),
    (TENSOR, r"^torch/", r""),
    (SERIALISE, r"^$", r"'decode' of|'encode' of"),
]
# Buckets whose callers' buckets take precedence: a buffer of a socket is not file I/O.
_TAKING = {
    FILE_IO: (S3, LOGGING, DECODE),
    TENSOR: (FORWARD, RESIZE, SERIALISE),
    SERIALISE: (S3, LOGGING, FILE_IO, DECODE),
}

_Rules = list[tuple[str, re.Pattern[str], re.Pattern[str]]]


def _compile(rules: Iterable[tuple[str, str, str]]) -> _Rules:
    return [(bucket, re.compile(file), re.compile(name)) for bucket, file, name in rules]


RULES, BORROWED = _compile(_RULES), _compile(_BORROWED)


def _match(function: Function, rules: _Rules) -> str | None:
    file, _, name = function
    file = "" if file == "~" else file
    for bucket, in_file, in_name in rules:
        if in_file.search(file) and in_name.search(name):
            return bucket
    return None


def find_buckets(stats: Stats) -> dict[Function, str]:
    """Returns the bucket of each function. Files must be shortened (`samples.make_shortener`)."""
    fixed = {function: _match(function, RULES) for function in stats}
    found = {function: bucket for function, bucket in fixed.items() if bucket}
    # One round for each level of helpers that call helpers. The rest has no known caller.
    for _ in range(8):
        learned = {
            function: bucket
            for function in stats
            if function not in found
            and (bucket := _ask_callers(function, stats, found)) is not None
        }
        if not learned:
            break
        found.update(learned)
    return {
        function: found.get(function) or _match(function, BORROWED) or OTHER for function in stats
    }


def _ask_callers(function: Function, stats: Stats, found: dict[Function, str]) -> str | None:
    """Returns the bucket whose callers spend most time in a function, if it is known."""
    own = _match(function, BORROWED)
    weights: dict[str, float] = {}
    for caller, (calls, _, own_s, _) in stats[function][4].items():
        bucket = found.get(caller)
        if bucket is None or (own is not None and bucket not in _TAKING[own]):
            bucket = own or OTHER
        # Calls break the tie between functions whose time is too short to measure.
        weights[bucket] = weights.get(bucket, 0.0) + own_s + calls * 1e-9
    if not weights:
        return None
    best = max(weights, key=lambda bucket: weights[bucket])
    return None if best == OTHER else best
