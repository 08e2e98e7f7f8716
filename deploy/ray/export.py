"""Makes a Ray Serve application from a .mar: `offpath export ray`.

DIR/config.yaml, rayservice.yaml: for `serve run`, and for KubeRay
DIR/deployment.py, ray_http.py, ray_metrics.py: the program
DIR/two_tiers.py, archived_decoder.py: the program with separate decoders
DIR/archived_handler.py, batch_queue.py, torchserve_http.py: what it shares with other servers
DIR/settings.json, archive/, requirements.txt
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

from offpath.deploy.exportable import (
    ARCHIVED_DECODER,
    SHELL,
    Exportable,
    make_folder,
    read_exportable,
    unpack,
    write_mark,
)
from offpath.handler.errors import WrongOption

TEMPLATES = Path(__file__).parent
PROGRAMS = tuple(
    TEMPLATES / name for name in ("deployment.py", "ray_http.py", "ray_metrics.py")
) + (SHELL / "batch_queue.py", SHELL / "torchserve_http.py")
LOOPBACK = "127.0.0.1"
# In a pod: others reach it by its address, and a NetworkPolicy decides who may.
ALL_ADDRESSES = "0.0.0.0"
# Tested with this version; 2.60 brought the HAProxy ingress.
RAY_VERSION = "2.60.0"
RAY = "ray[serve]>=2.60"
# TorchServe's default.
RESPONSE_TIMEOUT_S = 120
# Batches in flight per replica: one runs, one waits, one is spare.
BATCHES_ONGOING = 3
# Requests that may wait before others are refused; equal to our config.properties.
QUEUED = 200
# Requests in flight per core of a decoder, above which Ray starts another decoder: one is being
# decoded, three wait for that or for the model.
DECODER_TARGET = 4


@dataclass(frozen=True)
class RayChoices:
    """The options of `offpath export ray`.

    Attributes:
        replicas: lowest and highest number; None for the archive's workers.
        cpus: cores that Ray reserves for a replica; also its decode threads.
        decoders: lowest and highest number of replicas that only decode; None to decode in the
            replicas with the model.
        image: container image for KubeRay.
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
    """One deployment of the application, with `low` to `high` replicas."""

    name: str
    low: int
    high: int
    cpus: int
    gpus: float
    target_ongoing: int


def export_ray(choices: RayChoices) -> list[str]:
    """Writes the application.

    Returns:
        What the user can do with the application, one line each.

    Raises:
        WrongOption: the archive is not ours, the replicas are out of order, or the folder is not
            empty.
    """
    archive = read_exportable(choices.archive)
    serve_config = fill("config.yaml", archive, choices)
    in_pods = fill("config.yaml", archive, replace(choices, host=ALL_ADDRESSES))
    make_folder(choices.output, choices.force)
    unpack(archive.path, choices.output)
    programs = [*PROGRAMS]
    if choices.decoders is not None:
        programs += [TEMPLATES / "two_tiers.py", ARCHIVED_DECODER]
    for program in programs:
        shutil.copy(program, choices.output)
    texts = {
        "settings.json": json.dumps(make_settings(archive, choices), indent=2) + "\n",
        "config.yaml": serve_config,
        "rayservice.yaml": fill("rayservice.yaml", archive, choices, in_pods),
        "requirements.txt": "\n".join((RAY, *archive.list_requirements())) + "\n",
    }
    for name, text in texts.items():
        (choices.output / name).write_text(text, encoding="utf-8")
    write_mark(choices.output, archive.path)
    return [
        f"{choices.output}: {archive.path.name} as a Ray Serve application",
        f"pip install -r {choices.output / 'requirements.txt'}",
        f"cd {choices.output} && PYTHONPATH=. serve run config.yaml",
        f"curl -T photo.jpg http://{choices.host}:{choices.port}/predictions/{archive.name}",
    ]


def make_settings(archive: Exportable, choices: RayChoices) -> dict[str, Any]:
    """Collects the settings that the program reads from settings.json."""
    return {
        "name": archive.name,
        "batch_size": archive.batch_size,
        "max_batch_delay_ms": archive.max_batch_delay_ms,
        "max_payload_bytes": archive.handler.max_payload_bytes,
        "response_timeout_s": archive.server.get("responseTimeout", RESPONSE_TIMEOUT_S),
        # With separate decoders, the replicas with the model decode nothing.
        "threads": 1 if choices.decoders else choices.cpus,
        "decode_threads": choices.cpus,
    }


def list_tiers(archive: Exportable, choices: RayChoices) -> list[Tier]:
    """Lists the deployments of the application; the first one receives the requests."""
    low, high = choices.replicas or (archive.workers, archive.workers)
    # Replicas share one device; more than one helps where decoding takes the rest of the time.
    gpus = round(1 / high, 3) if archive.wants_gpu else 0
    # One full batch runs and one waits.
    target = 2 * archive.batch_size
    if choices.decoders is None:
        return [Tier("Classifier", low, high, choices.cpus, gpus, target)]
    decoder_target = DECODER_TARGET * choices.cpus
    return [
        Tier("Decoder", *choices.decoders, choices.cpus, 0, decoder_target),
        Tier("Classifier", low, high, 1, gpus, target),
    ]


def fill(template: str, archive: Exportable, choices: RayChoices, serve_config: str = "") -> str:
    """Fills a template with the values of the archive and the user."""
    tiers = list_tiers(archive, choices)
    max_ongoing = BATCHES_ONGOING * archive.batch_size
    return read_template(template).format(
        archive=archive.path.name,
        name=archive.name,
        program="deployment" if choices.decoders is None else "two_tiers",
        kube_name=re.sub("[^a-z0-9-]+", "-", archive.name.lower()).strip("-"),
        host=choices.host,
        port=choices.port,
        deployments=indent((describe_deployment(tier, max_ongoing) for tier in tiers), 6),
        image=choices.image,
        ray_version=RAY_VERSION,
        groups=indent((describe_group(tier, choices.image) for tier in tiers), 6),
        serve_config=indent([serve_config], 4),
    )


def read_template(name: str) -> str:
    """Reads a file of this folder."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def indent(texts: Iterable[str], columns: int) -> str:
    """Joins texts and indents their lines."""
    return textwrap.indent("".join(texts), " " * columns).rstrip()


def describe_deployment(tier: Tier, max_ongoing: int) -> str:
    """Writes one deployment of config.yaml."""
    return read_template("deployment.yaml").format(
        name=tier.name,
        replicas=textwrap.indent(describe_replicas(tier), "  "),
        max_ongoing=max_ongoing,
        max_queued=QUEUED,
        cpus=tier.cpus,
        gpus=tier.gpus,
    )


def describe_group(tier: Tier, image: str) -> str:
    """Writes one worker group of rayservice.yaml; a pod has room for all replicas of its tier."""
    return read_template("worker_group.yaml").format(
        group=tier.name.lower(),
        image=image,
        cpus=tier.cpus * tier.high,
        gpu_limit=", nvidia.com/gpu: 1" if tier.gpus else "",
    )


def describe_replicas(tier: Tier) -> str:
    """Writes a fixed number of replicas, or a range that follows the requests in flight."""
    low, high = tier.low, tier.high
    if not 0 < low <= high:
        raise WrongOption(
            f"replicas from {low} to {high}: expected numbers from 1, in ascending order"
        )
    if low == high:
        return f"num_replicas: {low}"
    return textwrap.dedent(f"""\
        autoscaling_config:
          min_replicas: {low}
          max_replicas: {high}
          # Requests in flight per replica, above which Ray starts another replica.
          target_ongoing_requests: {tier.target_ongoing}
          upscale_delay_s: 10
          downscale_delay_s: 120""")
