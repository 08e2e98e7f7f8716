"""Triton Inference Server: the real binary, from NVIDIA's wheel, with its python backend.

The `nvidia-pytriton` wheel bundles tritonserver 2.51 (release 24.10) with the python backend and
its stubs, and none of the other backends; PyTriton's own Python layer is not used.
"""

from __future__ import annotations

import ctypes.util
import json
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from offpath.deploy.triton.triton_export import export_triton
from offpath.profiling.load.generators import Call
from offpath.profiling.servers.archives import build_for_export
from offpath.profiling.servers.behind_nginx import BehindNginx
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_adapter import (
    MAX_BATCH_DELAY_MS,
    PROGRAMS,
    PackagedAdapter,
    Start,
)
from offpath.serving.server.server_settings import LOOPBACK

MODEL = "classifier"
# Version of Python that the backend's stub must be for.
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = str(sysconfig.get_config_var("LIBDIR"))
# Announces a body without the protocol's JSON: its bytes are the one input, whatever its type.
# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
RAW_BODY = {"Inference-Header-Content-Length": "0"}

CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {batch_size}
input [ {{ name: "IMAGE", data_type: TYPE_STRING, dims: [ 1 ] }} ]
output [
  {{ name: "LABEL", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "PROBABILITY", data_type: TYPE_FP32, dims: [ -1 ] }}
]
instance_group [ {{ kind: KIND_CPU, count: {instances} }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""


def read_outputs(reply: bytes) -> dict[str, float]:
    """Reads Triton's answer to a raw body: JSON, then the outputs' bytes."""
    # latin-1 keeps one character a byte, so that the JSON's end is an offset into the bytes.
    content, offset = json.JSONDecoder().raw_decode(reply.decode("latin-1"))
    tensors = {}
    for output in content["outputs"]:
        size = output["parameters"]["binary_data_size"]
        tensors[output["name"]] = reply[offset : offset + size]
        offset += size
    probabilities = np.frombuffer(tensors["PROBABILITY"], "<f4").tolist()
    return dict(zip(read_strings(tensors["LABEL"]), probabilities))


def read_strings(tensor: bytes) -> list[str]:
    """Returns the elements of a BYTES tensor; each has its length before it."""
    strings, offset = [], 0
    while offset < len(tensor):
        end = offset + 4 + int.from_bytes(tensor[offset : offset + 4], "little")
        strings.append(tensor[offset + 4 : end].decode())
        offset = end
    return strings


class Triton(PackagedAdapter):
    """Triton with decode and preprocessing in model.py as in its examples: Pillow, torchvision."""

    name = "triton"
    environment = Environment(
        "triton",
        (
            # Only the wheel's binary is used, not PyTriton with its dependencies.
            "--no-deps",
            # The last release; it bundles Triton 2.51 with stubs for Python 3.8 to 3.13.
            "nvidia-pytriton==0.7.0",
            # The stub's pybind11 knows only numpy 1: with 2 it reads each byte of an input as the
            # first.
            "numpy==1.26.4",
        ),
        size_mb=250,
    )
    program = "triton_model.py"
    predict_path, ready_path = f"/v2/models/{MODEL}/infer", "/v2/health/ready"
    worker_mark = "triton_python_backend_stub"
    # The second port is the metrics'.
    port_count = 2

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"version": "tritonserver 2.51, python backend"}

    @property
    def call(self) -> Call:
        return Call(RAW_BODY, read_reply=read_outputs)

    def why_not(self) -> str | None:
        reason = super().why_not()
        if reason is not None:
            return reason
        if not self.bundled_stub.exists():
            return f"its wheel has no stub for Python {PYTHON_VERSION}"
        if not has_libpython():
            return (
                f"its stub needs libpython{PYTHON_VERSION}.so, which this Python was built"
                " without: use one built with --enable-shared (Debian: apt install"
                f" libpython{PYTHON_VERSION})"
            )
        return None

    @property
    def bundled(self) -> Path:
        return self.environment.packages / "pytriton" / "tritonserver"

    @property
    def bundled_stub(self) -> Path:
        return self.bundled / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"

    def build(self, folder: Path) -> None:
        # What `--backend-directory` expects stands beside the model repository.
        self.write_models(folder)
        backend = folder / "backends" / "python"
        shutil.copytree(self.bundled / "backends" / "python", backend)
        shutil.copy(self.bundled_stub, backend)

    def write_models(self, folder: Path) -> None:
        version = folder / "models" / MODEL / "1"
        version.mkdir(parents=True)
        shutil.copy(PROGRAMS / self.program, version / "model.py")
        config = CONFIG.format(
            name=MODEL,
            batch_size=self.batch_size,
            instances=self.workers,
            delay_us=MAX_BATCH_DELAY_MS * 1000,
        )
        (version.parent / "config.pbtxt").write_text(config)

    def make_command(self, start: Start) -> list[str]:
        # Everything not named here is its default.
        port, metrics_port = start.ports
        return [
            str(self.bundled / "bin" / "tritonserver"),
            f"--model-repository={start.folder / 'models'}",
            f"--backend-directory={start.folder / 'backends'}",
            f"--http-address={LOOPBACK}",
            f"--http-port={port}",
            # Nobody calls it; it would bind a port on all addresses.
            "--allow-grpc=false",
            f"--metrics-address={LOOPBACK}",
            f"--metrics-port={metrics_port}",
            # By default 30 s: a client that is still connected delays its end.
            "--exit-timeout-secs=3",
        ]

    def make_environment(self, start: Start) -> dict[str, str]:
        # The stub is an isolated Python that ignores PYTHONPATH. It has the packages of the first
        # python3 on PATH.
        bundled = self.environment.packages / "nvidia_pytriton.libs"
        # Ours before the system's: the stub must load the same Python that it finds on PATH.
        libraries = f"{bundled}:{LIBRARIES}"
        return super().make_environment(start) | {"LD_LIBRARY_PATH": libraries}


class TritonOffpathDecode(Triton):
    """The same with our decode and engine in model.py, so that only the servers differ."""

    name, kind = "triton-offpath-decode", "offpath-decode"


class TritonNginx(BehindNginx, TritonOffpathDecode):
    name = "triton-nginx"


class OffpathExportTriton(Triton):
    """Triton with the output of `offpath export triton`."""

    name, kind = "offpath-export-triton", "offpath"

    def write_models(self, folder: Path) -> None:
        archive = build_for_export(self.model, self.workers, self.batch_size, folder)
        export_triton(archive, folder / "models", name=MODEL)


def has_libpython() -> bool:
    """Returns whether the library that the stub loads is there; the wheel bundles only 3.13's."""
    if sys.version_info >= (3, 13):
        return True
    if Path(LIBRARIES, f"libpython{PYTHON_VERSION}.so.1.0").exists():
        return True
    return ctypes.util.find_library(f"python{PYTHON_VERSION}") is not None
