"""`offpath export triton`: a .mar -> a model repository for Triton's python backend.

REPOSITORY/NAME/config.pbtxt
REPOSITORY/NAME/1/model.py, archived_handler.py, archive/
REPOSITORY/requirements.txt
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from offpath.deploy.exported import (
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

MODEL_FILE = Path(__file__).with_name("model.py")

CONFIG = """\
# Written by `offpath export triton` from {archive}.
name: "{name}"
backend: "python"
# The archive's batchSize.
max_batch_size: {batch_size}
# {image_note}
input [ {{ name: "IMAGE", {image} }} ]
# Best first; REPLY is the JSON that TorchServe would have sent.
output [
  {{ name: "LABEL", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "PROBABILITY", data_type: TYPE_FP32, dims: [ -1 ] }},
  {{ name: "REPLY", data_type: TYPE_STRING, dims: [ 1 ] }}
]
# One process each. {instances_note}
instance_group [ {{ kind: {kind}, count: {instances} }} ]
# The archive's maxBatchDelay, {delay_ms} ms.
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
# No model_warmup: the handler runs every batch size before it is ready, and Triton's own requests
# would stand in the prediction log.
"""


@dataclass(frozen=True)
class TritonChoices:
    """What the user asked for.

    Attributes:
        name: of the model; None for the archive's.
        instances: processes; None for the archive's workers.
        is_thin: the input is the model's pixels, uint8 [size, size, 3], instead of a file.
    """

    archive: Path
    output: Path
    name: str | None = None
    instances: int | None = None
    is_thin: bool = False
    force: bool = False


def export_triton(choices: TritonChoices) -> list[str]:
    """Writes the repository.

    Returns:
        what to do with it, a line each.

    Raises:
        WrongOption: no archive of ours, or a folder that is not empty.
    """
    archive = read_exportable(choices.archive)
    name = choices.name or archive.model_name
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise WrongOption(f"--name {name!r}: expected letters, digits, '-', '_', '.'")
    make_folder(choices.output, choices.force)
    model = choices.output / name
    unpack(archive, model / "1")
    shutil.copy(MODEL_FILE, model / "1")
    (model / "config.pbtxt").write_text(
        make_config(archive, choices, name), encoding="utf-8"
    )
    requirements = "".join(f"{one}\n" for one in list_requirements(archive))
    (choices.output / "requirements.txt").write_text(requirements, encoding="utf-8")
    write_mark(choices.output, archive)
    return [
        f"{model}: {archive.path.name} for Triton's python backend",
        *(
            [
                "not carried: explanations, which this archive answers under TorchServe and Ray"
            ]
            if read_handler_config(archive).explanations
            else []
        ),
        "pip install -r"
        f" {choices.output / 'requirements.txt'}  # in the first python3 on the server's PATH",
        f"tritonserver --model-repository={choices.output} --http-address=127.0.0.1"
        " --allow-grpc=false --metrics-address=127.0.0.1",
        "curl -H 'Inference-Header-Content-Length: 0' --data-binary @photo.jpg"
        f" http://127.0.0.1:8000/v2/models/{name}/infer",
    ]


def make_config(archive: MarFile, choices: TritonChoices, name: str) -> str:
    """The model's config.pbtxt."""
    config = archive.model_config or {}
    handler = read_handler_config(archive)
    shape = ", ".join(map(str, handler.square.shape))
    is_gpu = wants_gpu(archive)
    workers = count_workers(archive)
    image = (
        f"data_type: TYPE_UINT8, dims: [ {shape} ]"
        if choices.is_thin
        else "data_type: TYPE_STRING, dims: [ 1 ]"
    )
    delay_ms = config.get("maxBatchDelay", 1)
    return CONFIG.format(
        archive=archive.path.name,
        name=name,
        batch_size=config.get("batchSize", 1),
        image_note=(
            "A thin client's pixels."
            if choices.is_thin
            else "A file's bytes: JPEG, PNG, ..., or a thin client's npy."
        ),
        image=image,
        kind="KIND_GPU" if is_gpu else "KIND_CPU",
        instances_note="On each GPU." if is_gpu else f"Here: {os.cpu_count()} cores.",
        instances=choices.instances or workers,
        delay_ms=delay_ms,
        delay_us=1000 * delay_ms,
    )
