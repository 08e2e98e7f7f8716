"""Runs the parts of `offpath batch` on a Ray cluster, by Ray Data."""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.deploy.exportable import read_exportable
from offpath.errors import WrongOption
from offpath.serving.offline.part_runner import Job, ModelBroken, OnPart, PartRunner, Parts


class PartActor:
    """An actor with the model, for `map_batches`; a batch is one part."""

    def __init__(self, job: Job, content: list[Any]) -> None:
        import ray

        self._folder = tempfile.TemporaryDirectory(prefix="offpath-batch-")
        folder = Path(self._folder.name)
        (folder / "a.mar").write_bytes(ray.get(content[0]))
        unpack_mar(read_mar(folder / "a.mar"), folder / "archive")
        # Ray shows an actor only its own devices, numbered from 0.
        gpu = 0 if ray.get_gpu_ids() else None
        self._runner = PartRunner(job, folder / "archive", gpu)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        part, began_s = str(batch["part"][0]), time.monotonic()
        try:
            self._runner.run(part, json.loads(batch["names"][0]))
        except ModelBroken:
            os._exit(1)  # Ray starts another actor and repeats the part
        took_s = time.monotonic() - began_s
        return {"part": [part], "s": [took_s]}


def run_parts_on_ray(
    job: Job,
    mar: Path,
    max_actors: int | None,
    parts: Parts,
    on_part: OnPart,
) -> None:
    """Runs all parts on the cluster that RAY_ADDRESS names; Ray repeats those of a lost node.

    `max_actors` is None for as many as the cluster has room for.

    Raises:
        WrongOption: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise WrongOption(
            f"--ray needs Ray Data ({error}): pip install 'ray[data]>=2.60'"
        ) from error
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise WrongOption(
            "--ray finds no cluster; run it as a Ray job, or set RAY_ADDRESS"
        ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    archive = read_exportable(mar)
    gpus = archive.share_gpu(archive.serving.workers)
    room = ray.cluster_resources()
    fit = int(room.get("GPU", 0) / gpus if gpus else room["CPU"] / job.threads)
    most = max(1, min(len(parts), max_actors or fit))
    rows = [{"part": part, "names": json.dumps(parts[part])} for part in parts]
    # In a list, because Ray would replace an argument that is a reference by its value.
    content = [ray.put(mar.read_bytes())]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        PartActor,
        batch_size=1,
        concurrency=(1, most),
        fn_constructor_args=(job, content),
        num_cpus=job.threads,
        num_gpus=gpus,
    )
    # Ray prints to stdout which tasks it repeats.
    with contextlib.redirect_stdout(sys.stderr):
        for row in results.iter_rows():
            on_part(row["part"], time.monotonic() - row["s"])
