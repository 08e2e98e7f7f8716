"""Makes a model repository for Triton's python backend from a .mar: `offpath export triton`.

REPOSITORY/NAME/config.pbtxt
REPOSITORY/NAME/1/model.py, settings.json, archive/
REPOSITORY/NAME/1/service/offpath/: the service that it shares with other servers
REPOSITORY/requirements.txt
"""

from __future__ import annotations

import os
from pathlib import Path

from offpath.deploy.exportable import Exportable, read_exportable, write_export

MODEL_FILE = Path(__file__).with_name("model.py")

CONFIG = """\
# Written by `offpath export triton` from {archive}.
name: "{name}"
backend: "python"
# The archive's batchSize.
max_batch_size: {batch_size}
# The bytes of a file: JPEG, PNG, ..., or the .npy of a thin client.
input [ {{ name: "IMAGE", data_type: TYPE_STRING, dims: [ 1 ] }} ]
# Best first; REPLY is the JSON that TorchServe would have sent.
output [
  {{ name: "LABEL", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "PROBABILITY", data_type: TYPE_FP32, dims: [ -1 ] }},
  {{ name: "REPLY", data_type: TYPE_STRING, dims: [ 1 ] }}
]
# Each instance is one process. {instances_note}
instance_group [ {{ kind: {kind}, count: {instances} }} ]
# The archive's maxBatchDelay, {delay_ms} ms.
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
# No model_warmup: the handler runs every batch size before it is ready, and Triton's warm-up
# requests would appear in the prediction log.
"""


def export_triton(path: Path, output: Path, name: str | None = None) -> list[str]:
    """Writes the repository and returns what the user can do with it, one line each.

    Args:
        path: the archive.
        name: the model's name; None for the name in the archive.

    Raises:
        WrongOption: the archive is not ours, or the folder is not empty.
    """
    archive = read_exportable(path)
    name = name or archive.name
    model = output / name
    texts = {
        f"{name}/config.pbtxt": make_config(archive, name),
        "requirements.txt": "\n".join(archive.list_requirements()) + "\n",
    }
    write_export(archive, output, MODEL_FILE, f"{name}/1", "service", texts)
    lines = [f"{model}: {archive.path.name} for Triton's python backend"]
    if archive.handler.explanations:
        lines.append(
            "not exported: explanations, which this archive answers under TorchServe and Ray"
        )
    return [
        *lines,
        "pip install -r"
        f" {output / 'requirements.txt'}  # in the first python3 on the server's PATH",
        f"tritonserver --model-repository={output} --http-address=127.0.0.1"
        " --allow-grpc=false --metrics-address=127.0.0.1",
        "curl -H 'Inference-Header-Content-Length: 0' --data-binary @photo.jpg"
        f" http://127.0.0.1:8000/v2/models/{name}/infer",
    ]


def make_config(archive: Exportable, name: str) -> str:
    if archive.wants_gpu:
        kind, instances_note = "KIND_GPU", "This many run on each GPU."
    else:
        kind, instances_note = "KIND_CPU", f"Exported on {os.cpu_count()} cores."
    return CONFIG.format(
        archive=archive.path.name,
        name=name,
        batch_size=archive.serving.batch_size,
        kind=kind,
        instances_note=instances_note,
        instances=archive.serving.workers,
        delay_ms=archive.serving.max_batch_delay_ms,
        delay_us=1000 * archive.serving.max_batch_delay_ms,
    )
