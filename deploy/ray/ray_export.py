"""Makes a Ray Serve application from a .mar: `offpath export ray`.

DIR/config.yaml, rayservice.yaml: for `serve run`, and for KubeRay
DIR/deployment.py: the program
DIR/offpath/: the service that it shares with other servers
DIR/settings.json, archive/, requirements.txt
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from offpath.deploy.exportable import read_exportable, write_export
from offpath.serving.server.server_settings import LOOPBACK

TEMPLATES = Path(__file__).parent
# In a pod: others reach it by its address, and a NetworkPolicy decides who may.
ALL_ADDRESSES = "0.0.0.0"
# Tested with this version; 2.60 brought the HAProxy ingress.
RAY_VERSION = "2.60.0"
RAY = "ray[serve]>=2.60"
# Batches in flight per replica: one runs, one waits, one is spare.
BATCHES_ONGOING = 3
# Requests that may wait before others are refused; equal to our config.properties.
QUEUED = 200


def export_ray(
    path: Path,
    output: Path,
    replicas: tuple[int, int] | None = None,
    cpus: int = 1,
    host: str = LOOPBACK,
    port: int = 8000,
) -> list[str]:
    """Writes the application and returns what the user can do with it, one line each.

    Args:
        path: the archive.
        replicas: lowest and highest number; None for the archive's workers.
        cpus: cores that Ray reserves for a replica; also its decode threads.

    Raises:
        WrongOption: the archive is not ours, or the folder is not empty.
    """
    archive = read_exportable(path)
    low, high = replicas or (archive.serving.workers, archive.serving.workers)
    facts = {
        "archive": archive.path.name,
        "name": archive.name,
        "kube_name": re.sub("[^a-z0-9-]+", "-", archive.name.lower()).strip("-"),
        "port": port,
        # One full batch runs and one waits.
        "replicas": indent(describe_replicas(low, high, 2 * archive.serving.batch_size), 8),
        "max_ongoing": BATCHES_ONGOING * archive.serving.batch_size,
        "max_queued": QUEUED,
        "cpus": cpus,
        # Replicas share one device: while one decodes, another computes.
        "gpus": archive.share_gpu(high),
        "ray_version": RAY_VERSION,
        # A pod has room for all replicas.
        "pod_cpus": cpus * high,
        "gpu_limit": ", nvidia.com/gpu: 1" if archive.wants_gpu else "",
    }
    config, service = (
        (TEMPLATES / name).read_text(encoding="utf-8")
        for name in ("config.yaml", "rayservice.yaml")
    )
    in_pods = indent(config.format(**facts, host=ALL_ADDRESSES), 4)
    texts = {
        "config.yaml": config.format(**facts, host=host),
        "rayservice.yaml": service.format(**facts, host=host, serve_config=in_pods),
        "requirements.txt": "\n".join((RAY, *archive.list_requirements())) + "\n",
    }
    write_export(archive, output, TEMPLATES / "deployment.py", ".", ".", texts, cpus)
    return [
        f"{output}: {archive.path.name} as a Ray Serve application",
        f"pip install -r {output / 'requirements.txt'}",
        f"cd {output} && PYTHONPATH=. serve run config.yaml",
        f"curl -T photo.jpg http://{host}:{port}/predictions/{archive.name}",
    ]


def indent(text: str, columns: int) -> str:
    return textwrap.indent(text, " " * columns).rstrip()


def describe_replicas(low: int, high: int, target_ongoing: int) -> str:
    """Writes a fixed number of replicas, or a range that follows the requests in flight."""
    if low == high:
        return f"num_replicas: {low}"
    return textwrap.dedent(f"""\
        autoscaling_config:
          min_replicas: {low}
          max_replicas: {high}
          # Requests in flight per replica, above which Ray starts another replica.
          target_ongoing_requests: {target_ongoing}
          upscale_delay_s: 10
          downscale_delay_s: 120""")
