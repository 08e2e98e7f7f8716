"""A client generated from the .proto that TorchServe's own jar carries."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import grpc_tools
from grpc_tools import protoc

from offpath.serving.torchserve.launch import find_ts_home


def generate(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Writes and imports `inference_pb2` and `inference_pb2_grpc`."""
    jar = find_ts_home() / "ts" / "frontend" / "model-server.jar"
    with zipfile.ZipFile(jar) as file:
        for name in ("inference.proto", "google/rpc/status.proto"):
            file.extract(name, folder)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [f"-I{folder}", f"-I{well_known}"]
    arguments += [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    names = ["inference.proto", "google/rpc/status.proto"]
    if protoc.main(["protoc", *arguments, *names]) != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, str(folder))
    try:
        messages = importlib.import_module("inference_pb2")
        return messages, importlib.import_module("inference_pb2_grpc")
    finally:
        sys.path.remove(str(folder))
