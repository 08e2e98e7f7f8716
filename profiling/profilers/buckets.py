"""Which kind of work a function is: file I/O, S3, decode, resize, tensor, forward, serialise,
logging, other.

Rules over the function's file and name, first match wins. Functions that serve everybody (dict
methods, `re`, `isinstance`) match none and count to the bucket of who called them most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from offpath.profiling.profilers.call_profiler import Function, Stats

FILE_IO, S3, DECODE, RESIZE = "file I/O", "S3", "decode", "resize"
TENSOR, FORWARD, SERIALISE, LOGGING = "tensor", "forward", "serialise", "logging"
OTHER = "other"
BUCKETS = (FILE_IO, S3, DECODE, RESIZE, TENSOR, FORWARD, SERIALISE, LOGGING, OTHER)

# (bucket, file, name): regular expressions that must be found in both. Built-ins have no file.
_RULES = [
    # S3: the client and everything below it.
    (S3, r"^(boto3|botocore|aiobotocore|s3transfer|urllib3|aiohttp)/", r""),
    (S3, r"^(http/|socket\.py|ssl\.py|email/)", r""),
    (S3, r"^$", r"_socket|_ssl|select\.|'(poll|epoll)' objects|getaddrinfo"),
    # Decoding: Pillow reads lazily, so its loaders belong here as well.
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
    (RESIZE, r"^handler/(?:\w+/)*(resample|transform)\.py", r""),
    # Pixels into tensors, and tensors about.
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
# As above, for functions that count to their callers' bucket where that is one of theirs.
_BORROWED = [
    # The prediction log's append, like every other log's, is logging.
    (FILE_IO, r"^$", r"of '_io\.\w+' objects|\bposix\.write>"),
    (TENSOR, r"^$", r"torch|Tensor"),
    (TENSOR, r"^torch/", r""),
    (SERIALISE, r"^$", r"'decode' of|'encode' of"),
]
# Buckets that take what they call with them: a socket's buffer is no file.
_TAKING = {
    FILE_IO: (S3, LOGGING, DECODE),
    TENSOR: (FORWARD, RESIZE, SERIALISE),
    SERIALISE: (S3, LOGGING, FILE_IO, DECODE),
}

_Rules = list[tuple[str, re.Pattern[str], re.Pattern[str]]]


def _compile(rules: Iterable[tuple[str, str, str]]) -> _Rules:
    return [
        (bucket, re.compile(file), re.compile(name)) for bucket, file, name in rules
    ]


RULES, BORROWED = _compile(_RULES), _compile(_BORROWED)


def _match(function: Function, rules: _Rules) -> str | None:
    file, _, name = function
    file = "" if file == "~" else file
    for bucket, in_file, in_name in rules:
        if in_file.search(file) and in_name.search(name):
            return bucket
    return None


def find_buckets(stats: Stats) -> dict[Function, str]:
    """The bucket of each function; files must be shortened (`profiling.source_paths`)."""
    fixed = {function: _match(function, RULES) for function in stats}
    found = {function: bucket for function, bucket in fixed.items() if bucket}
    # As many rounds as helpers call helpers; what then has no bucket works for nobody we know.
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
        function: found.get(function) or _match(function, BORROWED) or OTHER
        for function in stats
    }


def _ask_callers(
    function: Function, stats: Stats, found: dict[Function, str]
) -> str | None:
    """The bucket that a function without a rule has by most of its time, if it is known."""
    own = _match(function, BORROWED)
    weights: dict[str, float] = {}
    for caller, (calls, _, own_s, _) in stats[function][4].items():
        bucket = found.get(caller)
        if bucket is None or (own is not None and bucket not in _TAKING[own]):
            bucket = own or OTHER
        # Calls break the tie of functions that cost nothing measurable.
        weights[bucket] = weights.get(bucket, 0.0) + own_s + calls * 1e-9
    if not weights:
        return None
    best = max(weights, key=lambda bucket: weights[bucket])
    return None if best == OTHER else best
