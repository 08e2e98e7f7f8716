"""`offpath export triton`: its files and refusals; a real Triton is in test_adapters.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.archive.mar_file import OUR_HANDLER, read_mar
from offpath.deploy.exportable import read_exportable
from offpath.deploy.triton.triton_export import make_config
from offpath.serving.server.plan import plan_server
from tests.support.echo_archive import make_settings
from tests.support.hostile_archives import pack


@pytest.fixture
def archive(model_store: Path) -> Path:
    return model_store / "near-free.mar"


def test_the_configuration_says_what_the_archive_says(archive, tmp_path):
    exportable = read_exportable(archive)
    text = make_config(exportable, "net")
    config = read_mar(archive).model_config
    assert f"max_batch_size: {config['batchSize']}" in text
    delay_us = config["maxBatchDelay"] * 1000
    assert f"max_queue_delay_microseconds: {delay_us}" in text
    assert f"kind: KIND_CPU, count: {config['maxWorkers']}" in text
    assert "TYPE_STRING, dims: [ 1 ]" in text


def test_a_gpu_archive_has_instances_on_each_gpu(tmp_path):
    settings = {
        "batchSize": 32,
        "maxBatchDelay": 5,
        "maxWorkers": 2,
        "deviceType": "gpu",
    }
    archive = write_archive(tmp_path, settings)
    text = make_config(read_exportable(archive), "net")
    assert "kind: KIND_GPU, count: 2" in text and "on each GPU" in text


@pytest.mark.parametrize("given", [{}, {"maxBatchDelay": 0}, {"maxBatchDelay": "1"}], ids=str)
def test_a_delay_that_torchserve_takes_from_its_default_is_the_same_everywhere(given, tmp_path):
    path = write_archive(tmp_path, {"batchSize": 8, **given})
    archive = read_exportable(path)
    (model,) = plan_server(make_settings(path)).models
    assert model.settings.list_numbers()["maxBatchDelay"] == 100
    assert archive.describe_service()["max_batch_delay_ms"] == 100
    assert "max_queue_delay_microseconds: 100000" in make_config(archive, "some")


def write_archive(folder: Path, settings: dict) -> Path:
    model = {"modelName": "some", "handler": "x.py", "configFile": "c.yaml"}
    files = {"c.yaml": json.dumps(settings).encode(), OUR_HANDLER: b""}
    pack(folder / "some.mar", {"model": model}, files)
    return folder / "some.mar"
