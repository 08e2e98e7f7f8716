"""Our archive outside of TorchServe: the output of `offpath export` under test."""

from __future__ import annotations

import json
from pathlib import Path

from offpath.deploy.ray.ray_export import export_ray
from offpath.deploy.triton.triton_export import export_triton
from offpath.handler.serving_settings import name_keys
from offpath.profiling.load.call import Call
from offpath.profiling.servers.adapter import PackagedAdapter, Start
from offpath.profiling.servers.archives import NAME, build_offpath, offpath_config
from offpath.profiling.servers.confined import confine
from offpath.profiling.servers.ray_serve import RayServe
from offpath.profiling.servers.triton import MODEL, RAW_BODY, Triton, read_outputs

# In a namespace of its own every port is free.
RAY_PORT = 8000


def build_archive(server: PackagedAdapter, folder: Path) -> Path:
    config = {
        **offpath_config(server.model, server.workers),
        **name_keys(batch_size=server.batch_size),
    }
    store = folder / "store"
    store.mkdir()
    return build_offpath(server.model, config, store)


class OffpathExportTriton(Triton):
    """Triton with the output of `offpath export triton`."""

    name, kind = "offpath-export-triton", "offpath"

    def make_call(self) -> Call:
        return Call(RAW_BODY, read_reply=read_outputs)

    def write_models(self, folder: Path) -> None:
        archive = build_archive(self, folder)
        export_triton(archive, folder / "models", name=MODEL)


class OffpathRay(RayServe):
    """Ray Serve with the output of `offpath export ray`, behind Ray's HAProxy."""

    name, kind = "offpath-ray", "offpath"
    predict_path, ready_path = f"/predictions/{NAME}", "/ping"

    def build(self, folder: Path) -> None:
        archive = build_archive(self, folder)
        export_ray(archive, folder / "application", port=RAY_PORT)

    def make_command(self, start: Start) -> list[str]:
        # In a namespace, because HAProxy and Ray listen on all addresses.
        config = start.folder / "application" / "config.yaml"
        command = [str(start.python), "-m", "ray.serve.scripts", "run", str(config)]
        return confine(start.python, start.port, RAY_PORT, command)

    def make_environment(self, start: Start) -> dict[str, str]:
        return super().make_environment(start) | {
            "PYTHONPATH": str(start.folder / "application"),
            "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": self.workers}),
        }

    def is_ready(self, start: Start) -> bool:
        # A replica answers through the proxy.
        return PackagedAdapter.is_ready(self, start)
