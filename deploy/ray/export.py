"""`offpath export ray`: a .mar -> a Ray Serve application.

DIR/config.yaml, rayservice.yaml: for `serve run`, and for KubeRay
DIR/deployment.py, archived_handler.py, settings.json, archive/
DIR/requirements.txt
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpath.deploy.exported import (
    count_workers,
    handler_settings,
    list_requirements,
    make_folder,
    read_exportable,
    unpack,
    wants_gpu,
    write_mark,
)
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ExpectedError
from offpath.serving.mar_file import MarFile

TEMPLATES = Path(__file__).parent
LOOPBACK = "127.0.0.1"
# In a pod: others come to it by its address, and a NetworkPolicy says who.
ALL_ADDRESSES = "0.0.0.0"
# Tried with this one: 2.60 has the HAProxy ingress.
RAY_VERSION = "2.60.0"
RAY = "ray[serve]>=2.60"
# Of Ray's batch queue: one batch runs, one waits, and a spare.
BATCHES_ONGOING = 3
# As our config.properties: what waits before it is refused.
QUEUED = 200


@dataclass(frozen=True)
class RayChoices:
    """What the user asked for.

    Attributes:
        replicas: lowest and highest number; None for the archive's workers.
        cpus: of a replica, its decode threads too.
        image: for KubeRay.
    """

    archive: Path
    output: Path
    replicas: tuple[int, int] | None = None
    cpus: int = 1
    host: str = LOOPBACK
    port: int = 8000
    image: str = "REGISTRY/offpath-ray:TAG"
    force: bool = False


def export_ray(choices: RayChoices) -> list[str]:
    """Writes the application.

    Returns:
        what to do with it, a line each.

    Raises:
        ExpectedError: no archive of ours, or a folder that is not empty.
    """
    archive = read_exportable(choices.archive)
    settings = read_settings(archive, choices)
    serve_config = fill("config.yaml", archive, choices)
    in_pods = fill("config.yaml", archive, replace(choices, host=ALL_ADDRESSES))
    make_folder(choices.output, choices.force)
    unpack(archive, choices.output)
    shutil.copy(TEMPLATES / "deployment.py", choices.output)
    texts = {
        "settings.json": json.dumps(settings, indent=2) + "\n",
        "config.yaml": serve_config,
        "rayservice.yaml": fill("rayservice.yaml", archive, choices, in_pods),
        "requirements.txt": "".join(
            f"{one}\n" for one in (RAY, *list_requirements(archive))
        ),
    }
    for name, text in texts.items():
        (choices.output / name).write_text(text, encoding="utf-8")
    write_mark(choices.output, archive)
    return [
        f"{choices.output}: {archive.path.name} as a Ray Serve application",
        f"pip install -r {choices.output / 'requirements.txt'}",
        f"cd {choices.output} && PYTHONPATH=. serve run config.yaml",
        f"curl -T photo.jpg http://{choices.host}:{choices.port}/predictions/{archive.model_name}",
    ]


def read_settings(archive: MarFile, choices: RayChoices) -> dict[str, Any]:
    """What deployment.py reads."""
    config = archive.model_config or {}
    handler = HandlerConfig.from_mapping(handler_settings(archive), environ={})
    return {
        "name": archive.model_name,
        "batch_size": config.get("batchSize", 1),
        "max_batch_delay_ms": config.get("maxBatchDelay", 1),
        "max_payload_bytes": handler.max_payload_bytes,
        "threads": choices.cpus,
    }


def fill(
    template: str, archive: MarFile, choices: RayChoices, serve_config: str = ""
) -> str:
    """A template with the archive's and the user's values."""
    config = archive.model_config or {}
    is_gpu = wants_gpu(archive)
    workers = count_workers(archive)
    low, high = choices.replicas or (workers, workers)
    batch_size = int(config.get("batchSize", 1))
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return text.format(
        archive=archive.path.name,
        name=archive.model_name,
        kube_name=re.sub("[^a-z0-9-]+", "-", archive.model_name.lower()).strip("-"),
        host=choices.host,
        port=choices.port,
        replicas=textwrap.indent(describe_replicas(low, high, batch_size), " " * 8),
        max_ongoing=BATCHES_ONGOING * batch_size,
        max_queued=QUEUED,
        cpus=choices.cpus,
        # Replicas on one device share it; more than one is of use where decoding is the rest.
        gpus=round(1 / high, 3) if is_gpu else 0,
        image=choices.image,
        ray_version=RAY_VERSION,
        pod_cpus=choices.cpus * high,
        gpu_limit=", nvidia.com/gpu: 1" if is_gpu else "",
        serve_config=textwrap.indent(serve_config, " " * 4).rstrip(),
    )


def describe_replicas(low: int, high: int, batch_size: int) -> str:
    """As many replicas, or from so many to so many by what is in flight."""
    if not 0 < low <= high:
        raise ExpectedError(
            f"replicas from {low} to {high}: expected 1 or more, ascending"
        )
    if low == high:
        return f"num_replicas: {low}"
    return textwrap.dedent(f"""\
        autoscaling_config:
          min_replicas: {low}
          max_replicas: {high}
          # Of each replica in flight: one full batch that runs, and one that waits.
          target_ongoing_requests: {2 * batch_size}
          upscale_delay_s: 10
          downscale_delay_s: 120""")
