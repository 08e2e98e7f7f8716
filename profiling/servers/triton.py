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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offpath.handler.npy import read_npy
from offpath.profiling.load.call import JPEG, NPY, Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, MAX_BATCH_DELAY_MS
from offpath.profiling.servers.environments import find_environment, site_packages
from offpath.profiling.servers.launched import (
    Launch,
    ServerProcess,
    environment_path_variable,
    is_ok,
    launched,
    on_free_ports,
)
from offpath.serving.ports import resolve_ports

ENVIRONMENT = "triton"
REQUIREMENTS = (
    # Of the wheel the binary alone is used, not PyTriton with its dependencies.
    "--no-deps",
    # The last release; it bundles Triton 2.51 with stubs for Python 3.8 to 3.13.
    "nvidia-pytriton==0.7.0",
    # The stub's pybind11 knows numpy 1 alone: with 2 it reads each byte of an input as the first.
    "numpy==1.26.4",
)
LOOPBACK = "127.0.0.1"
MODEL = "classifier"
# Not imported: only the server has what it imports.
MODEL_FILE = Path(__file__).parent / "models" / "triton_model.py"
# A body without the protocol's JSON before it: the bytes are the one input, whatever its type.
# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
RAW_BODY = {"Inference-Header-Content-Length": "0"}

CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {batch_size}
input [ {{ name: "IMAGE", data_type: {data_type}, dims: {dims} }} ]
output [
  {{ name: "LABEL", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "PROBABILITY", data_type: TYPE_FP32, dims: [ -1 ] }}
]
instance_group [ {{ kind: KIND_CPU, count: {instances} }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
parameters [
  {{ key: "kind", value: {{ string_value: "{kind}" }} }},
  {{ key: "model", value: {{ string_value: "{model}" }} }},
  {{ key: "threads", value: {{ string_value: "{threads}" }} }}
]
"""


def read_outputs(reply: bytes) -> dict[str, float]:
    """Triton's answer to a raw body, JSON and then the outputs' bytes: label -> probability."""
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
    """The elements of a BYTES tensor; each has its length before it."""
    strings, offset = [], 0
    while offset < len(tensor):
        end = offset + 4 + int.from_bytes(tensor[offset : offset + 4], "little")
        strings.append(tensor[offset + 4 : end].decode())
        offset = end
    return strings


class RunningTriton:
    """A ready Triton; its workers are the stub processes that run model.py."""

    def __init__(self, server: ServerProcess, predict_url: str) -> None:
        self._server = server
        self.predict_url = predict_url

    def groups(self) -> Groups:
        """See `RunningServer`."""
        return self._server.groups()

    def is_running(self) -> bool:
        """See `RunningServer`."""
        return self._server.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._server.launch.log


@dataclass
class TritonUnderTest:
    """One way to run Triton.

    Attributes:
        kind: what model.py does with an image, see `models.classifiers`.
        instances: processes that run model.py, with one thread each.
    """

    name: str
    model: ModelUnderTest
    kind: str
    instances: int
    call: Call
    batch_size: int = BATCH_SIZE
    threads: int = 1
    _folder: Path | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return {
            "version": "tritonserver 2.51 (nvidia-pytriton 0.7.0), python backend",
            "max_batch_size": self.batch_size,
            "max_queue_delay_microseconds": MAX_BATCH_DELAY_MS * 1000,
            "instances": self.instances,
            "threads": self.threads,
            "preprocessing": self.kind,
        }

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        python = find_environment(ENVIRONMENT, REQUIREMENTS)
        if python is None:
            return "not set up here: offpath bench setup triton (250 MB)"
        if not stub_path(python).exists():
            return f"its wheel has no stub for Python {python_version()}"
        if find_libpython() is None:
            return (
                f"its stub needs libpython{python_version()}.so, which this Python was built"
                " without: use one built with --enable-shared (Debian: apt install"
                f" libpython{python_version()})"
            )
        return None

    def prepare(self, folder: Path) -> None:
        """Writes the model repository and the backend folder."""
        version = folder / "models" / MODEL / "1"
        version.mkdir(parents=True)
        shutil.copy(MODEL_FILE, version / "model.py")
        (version.parent / "config.pbtxt").write_text(self.make_config())
        copy_backend(self._python(), folder / "backends" / "python")
        self._folder = folder

    def make_config(self) -> str:
        """The model's config.pbtxt."""
        size = self.model.config.image_size
        is_thin = self.call.content == NPY
        return CONFIG.format(
            name=MODEL,
            batch_size=self.batch_size,
            data_type="TYPE_UINT8" if is_thin else "TYPE_STRING",
            dims=f"[ {size}, {size}, 3 ]" if is_thin else "[ 1 ]",
            instances=self.instances,
            delay_us=MAX_BATCH_DELAY_MS * 1000,
            kind=self.kind,
            model=self.model.reference,
            threads=self.threads,
        )

    def running(self) -> AbstractContextManager[RunningTriton]:
        """See `ServerUnderTest`."""
        return on_free_ports(self._start)

    @contextmanager
    def _start(self) -> Iterator[RunningTriton]:
        if self._folder is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        port, metrics_port = resolve_ports(LOOPBACK, [0, 0])
        url = f"http://{LOOPBACK}:{port}/v2"
        launch = Launch(
            self.name,
            make_command(self._python(), self._folder, port, metrics_port),
            self._folder / "triton.log",
            make_environment(self._python(), self.threads),
        )
        with launched(launch, is_ok(f"{url}/health/ready")) as server:
            yield RunningTriton(server, f"{url}/models/{MODEL}/infer")

    def _python(self) -> Path:
        python = find_environment(ENVIRONMENT, REQUIREMENTS)
        if python is None:
            raise RuntimeError(f"server {self.name!r} was prepared without setup")
        return python


def python_version() -> str:
    """Of the stub: major.minor."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def packages(python: Path) -> Path:
    """The environment's own package folder."""
    return site_packages(python.parents[1])


def stub_path(python: Path) -> Path:
    """The wheel's stub for this Python."""
    stubs = packages(python) / "pytriton" / "tritonserver" / "python_backend_stubs"
    return stubs / python_version() / "triton_python_backend_stub"


def find_libpython() -> str | None:
    """The shared library that the stub loads; the wheel bundles 3.13's alone."""
    if sys.version_info >= (3, 13):
        return "bundled"
    name = f"libpython{python_version()}.so.1.0"
    own = Path(str(sysconfig.get_config_var("LIBDIR"))) / name
    if own.exists():
        return str(own)
    return ctypes.util.find_library(f"python{python_version()}")


def copy_backend(python: Path, folder: Path) -> None:
    """The python backend with the stub of this Python: what `--backend-directory` expects."""
    bundled = packages(python) / "pytriton" / "tritonserver" / "backends" / "python"
    shutil.copytree(bundled, folder)
    shutil.copy(stub_path(python), folder)


def make_command(python: Path, folder: Path, port: int, metrics_port: int) -> list[str]:
    """tritonserver on loopback; everything not named here is its default."""
    return [
        str(packages(python) / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        f"--http-address={LOOPBACK}",
        f"--http-port={port}",
        # Nobody calls it; it would bind a port on all addresses.
        "--allow-grpc=false",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={metrics_port}",
        # Of 30 s: a client that is still connected holds up its end.
        "--exit-timeout-secs=3",
    ]


def make_environment(python: Path, threads: int) -> dict[str, str]:
    """Libraries and Python for the server and its stubs."""
    libraries = [
        str(packages(python) / "nvidia_pytriton.libs"),
        # Before the system's: the stub must load the same Python that it finds on PATH.
        str(sysconfig.get_config_var("LIBDIR")),
    ]
    return {
        "LD_LIBRARY_PATH": ":".join(libraries),
        # The stub is an isolated Python that ignores PYTHONPATH; it takes its packages from the
        # first python3 on PATH.
        "PATH": environment_path_variable(python),
        "OMP_NUM_THREADS": str(threads),
    }


def make_triton(model: ModelUnderTest, cores: int) -> TritonUnderTest:
    """Decode and preprocessing in model.py as in its examples: Pillow and torchvision."""
    call = Call(JPEG, RAW_BODY, read_reply=read_outputs)
    return TritonUnderTest("triton", model, "pillow", cores, call)


def make_triton_offpath_decode(model: ModelUnderTest, cores: int) -> TritonUnderTest:
    """Our decode and engine in model.py: what is left of the difference is the server's."""
    call = Call(JPEG, RAW_BODY, read_reply=read_outputs)
    return TritonUnderTest(
        "triton-offpath-decode", model, "offpath-decode", cores, call
    )


def make_triton_thin(model: ModelUnderTest, cores: int) -> TritonUnderTest:
    """The client sends the model's uint8 pixels, as Triton's own image clients do."""
    size = model.config.image_size
    call = Call(
        NPY,
        RAW_BODY,
        wrap=lambda npy: read_npy(npy, size).tobytes(),
        read_reply=read_outputs,
    )
    return TritonUnderTest("triton-thin", model, "thin", cores, call)
