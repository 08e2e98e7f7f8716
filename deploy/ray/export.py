"""`offpath export ray`: a .mar -> a Ray Serve application.

DIR/config.yaml, rayservice.yaml: for `serve run`, and for KubeRay
DIR/deployment.py, edge.py, batches.py, series.py, archived_handler.py, settings.json, archive/
DIR/two_tiers.py, archived_decoder.py: with decoders of their own
DIR/requirements.txt
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpath.deploy.exported import (
    ARCHIVED_DECODER,
    count_workers,
    list_requirements,
    make_folder,
    read_exportable,
    read_handler_config,
    unpack,
    wants_gpu,
    write_mark,
)
from offpath.handler.errors import WrongOption
from offpath.serving.mar_file import MarFile

TEMPLATES = Path(__file__).parent
PROGRAMS = ("deployment.py", "edge.py", "batches.py", "series.py")
TWO_TIERS = ("two_tiers.py",)
LOOPBACK = "127.0.0.1"
# In a pod: others come to it by its address, and a NetworkPolicy says who.
ALL_ADDRESSES = "0.0.0.0"
# Tried with this one: 2.60 has the HAProxy ingress.
RAY_VERSION = "2.60.0"
RAY = "ray[serve]>=2.60"
# TorchServe's default.
RESPONSE_TIMEOUT_S = 120
# Of Ray's batch queue: one batch runs, one waits, and a spare.
BATCHES_ONGOING = 3
# As our config.properties: what waits before it is refused.
QUEUED = 200
# In flight at a decoder for each of its cores, above which another one is started: one picture
# that is decoded, and three that wait for it or for the model.
DECODER_TARGET = 4


@dataclass(frozen=True)
class RayChoices:
    """What the user asked for.

    Attributes:
        replicas: lowest and highest number; None for the archive's workers.
        cpus: of a replica, its decode threads too.
        decoders: replicas that only decode, before the model's; None: the model's decode.
        image: for KubeRay.
    """

    archive: Path
    output: Path
    replicas: tuple[int, int] | None = None
    cpus: int = 1
    decoders: tuple[int, int] | None = None
    host: str = LOOPBACK
    port: int = 8000
    image: str = "REGISTRY/offpath-ray:TAG"
    force: bool = False


@dataclass(frozen=True)
class Tier:
    """A deployment of the application: from `low` to `high` replicas."""

    name: str
    low: int
    high: int
    cpus: int
    gpus: float
    target_ongoing: int


def export_ray(choices: RayChoices) -> list[str]:
    """Writes the application.

    Returns:
        what to do with it, a line each.

    Raises:
        WrongOption: no archive of ours, or a folder that is not empty.
    """
    archive = read_exportable(choices.archive)
    settings = read_settings(archive, choices)
    serve_config = fill("config.yaml", archive, choices)
    in_pods = fill("config.yaml", archive, replace(choices, host=ALL_ADDRESSES))
    make_folder(choices.output, choices.force)
    unpack(archive, choices.output)
    names = [*PROGRAMS]
    if choices.decoders is not None:
        names += TWO_TIERS
        shutil.copy(ARCHIVED_DECODER, choices.output)
    for name in names:
        shutil.copy(TEMPLATES / name, choices.output)
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
    handler = read_handler_config(archive)
    return {
        "name": archive.model_name,
        "batch_size": config.get("batchSize", 1),
        "max_batch_delay_ms": config.get("maxBatchDelay", 1),
        "max_payload_bytes": handler.max_payload_bytes,
        "response_timeout_s": config.get("responseTimeout", RESPONSE_TIMEOUT_S),
        # With decoders the model's replicas decode nothing.
        "threads": 1 if choices.decoders else choices.cpus,
        "decode_threads": choices.cpus,
    }


def list_tiers(archive: MarFile, choices: RayChoices) -> list[Tier]:
    """The deployments of the application, the first one takes the requests."""
    batch_size = int((archive.model_config or {}).get("batchSize", 1))
    workers = count_workers(archive)
    low, high = choices.replicas or (workers, workers)
    # Replicas on one device share it; more than one is of use where decoding is the rest.
    gpus = round(1 / high, 3) if wants_gpu(archive) else 0
    # Of each replica in flight: one full batch that runs, and one that waits.
    target = 2 * batch_size
    if choices.decoders is None:
        return [Tier("Classifier", low, high, choices.cpus, gpus, target)]
    return [
        Tier(
            "Decoder", *choices.decoders, choices.cpus, 0, DECODER_TARGET * choices.cpus
        ),
        Tier("Classifier", low, high, 1, gpus, target),
    ]


def fill(
    template: str, archive: MarFile, choices: RayChoices, serve_config: str = ""
) -> str:
    """A template with the archive's and the user's values."""
    batch_size = int((archive.model_config or {}).get("batchSize", 1))
    tiers = list_tiers(archive, choices)
    return read_template(template).format(
        archive=archive.path.name,
        name=archive.model_name,
        program="deployment" if choices.decoders is None else "two_tiers",
        kube_name=re.sub("[^a-z0-9-]+", "-", archive.model_name.lower()).strip("-"),
        host=choices.host,
        port=choices.port,
        deployments=indent(
            (describe_deployment(tier, BATCHES_ONGOING * batch_size) for tier in tiers),
            6,
        ),
        image=choices.image,
        ray_version=RAY_VERSION,
        groups=indent((describe_group(tier, choices.image) for tier in tiers), 6),
        serve_config=indent([serve_config], 4),
    )


def read_template(name: str) -> str:
    """A file beside this one."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def indent(texts: Iterable[str], columns: int) -> str:
    """Texts one below the other, set in."""
    return textwrap.indent("".join(texts), " " * columns).rstrip()


def describe_deployment(tier: Tier, max_ongoing: int) -> str:
    """A deployment in config.yaml."""
    return read_template("deployment.yaml").format(
        name=tier.name,
        replicas=textwrap.indent(describe_replicas(tier), "  "),
        max_ongoing=max_ongoing,
        max_queued=QUEUED,
        cpus=tier.cpus,
        gpus=tier.gpus,
    )


def describe_group(tier: Tier, image: str) -> str:
    """Workers for a tier in rayservice.yaml: a pod has room for all its replicas."""
    return read_template("worker_group.yaml").format(
        group=tier.name.lower(),
        image=image,
        cpus=tier.cpus * tier.high,
        gpu_limit=", nvidia.com/gpu: 1" if tier.gpus else "",
    )


def describe_replicas(tier: Tier) -> str:
    """As many replicas, or from so many to so many by what is in flight."""
    low, high = tier.low, tier.high
    if not 0 < low <= high:
        raise WrongOption(
            f"replicas from {low} to {high}: expected 1 or more, ascending"
        )
    if low == high:
        return f"num_replicas: {low}"
    return textwrap.dedent(f"""\
        autoscaling_config:
          min_replicas: {low}
          max_replicas: {high}
          # In flight at each replica, above which another one is started.
          target_ongoing_requests: {tier.target_ongoing}
          upscale_delay_s: 10
          downscale_delay_s: 120""")
