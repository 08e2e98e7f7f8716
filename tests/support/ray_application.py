"""The near-free model as an exported Ray application with its prediction log in a folder."""

from __future__ import annotations

from pathlib import Path

from offpath.deploy.ray.export import RayChoices, export_ray
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers import archives


def make_application(folder: Path, batch_size: int, replicas: tuple[int, int]) -> None:
    """Exports FOLDER/application, which logs to FOLDER/log.

    Args:
        replicas: lowest and highest number of replicas.
    """
    model = load_model("near-free")
    log = {"uri": f"file://{folder / 'log'}", "segment_max_age_s": 2}
    config = archives.offpath_config(model, 1, prediction_log=log)
    (folder / "store").mkdir()
    config = {**config, "batchSize": batch_size}
    archive = archives.build_offpath(model, config, folder / "store")
    # The balancer runs on another node.
    application = folder / "application"
    export_ray(RayChoices(archive, application, replicas, host="0.0.0.0"))
