from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.handler.serving_settings import ServingSettings
from offpath.serving.server.in_force import check_in_force, find_differences
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import plan_server
from offpath.serving.starting import find_gaps
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.echo_archive import MODEL_CONFIG, make_settings, write_mar
from tests.support.obedient_model import change_models

STATUS = ModelStatus("echo", "1.0", "echo.mar", 1, 1, 4, 5, 20, 60, ("READY",), (7,))


@pytest.mark.parametrize(
    ("changes", "setting", "cause"),
    [
        pytest.param({"maxBatchDelay": 0}, "maxBatchDelay", "use 1 ms", id="delay-0"),
        pytest.param({"batchSize": "4"}, "batchSize", "whole numbers", id="text"),
        pytest.param({"batchSize": 8}, "batchSize", "management API", id="registered"),
        pytest.param({"maxWorkers": 2}, "maxWorkers", "scaled", id="scaled"),
        pytest.param({"minWorkers": 2}, "minWorkers", "only together", id="min-over-max"),
    ],
)
def test_difference_names_its_likely_cause(changes: dict, setting: str, cause: str) -> None:
    settings = ServingSettings.from_mapping({**MODEL_CONFIG, **changes})
    (difference,) = find_differences(settings, STATUS)
    assert difference.subject == setting
    assert cause in difference.cure
    assert "TorchServe" not in difference.cure, "Granian serves with the same rules"


def test_an_engine_that_does_not_serve_is_said_with_its_reason_at_ready() -> None:
    described = {"engine": "eager", "precision": "fp32", "engines_lost": ["moved by 0.3"]}
    (said,) = find_gaps([replace(STATUS, described=described)])
    assert said.startswith("echo 1.0 runs eager fp32: moved by 0.3; build the archive")


GPU_CONFIG = {**MODEL_CONFIG, "deviceType": "gpu"}


@pytest.mark.parametrize(
    ("described", "on_gpu", "found"),
    [
        pytest.param({"device": "cpu"}, True, ["deviceType"], id="fell-back"),
        pytest.param({}, False, ["deviceType"], id="other-handler-without"),
        pytest.param({"device": "cuda:0"}, True, [], id="has-one"),
        pytest.param({}, True, [], id="other-handler-with"),
    ],
)
def test_gpu_that_is_asked_for_and_not_there_is_a_difference(
    described: dict, on_gpu: bool, found: list[str]
) -> None:
    status = replace(STATUS, described=described, on_gpu=on_gpu)
    differences = list(find_differences(ServingSettings.from_mapping(GPU_CONFIG), status))
    assert [one.subject for one in differences] == found
    assert all("--allow-cpu" in one.cure for one in differences)


def register(server: TorchServe, archive: Path, **parameters: object) -> None:
    asked = {"url": archive.name, "initial_workers": 1, "synchronous": "true", **parameters}
    change_models(server.management_url, "POST", "/models", **asked)


@pytest.mark.server
def test_gpu_archive_on_the_cpu_needs_to_be_allowed(server: TorchServe) -> None:
    echo = write_mar(server.settings.model_store, "on-gpu", GPU_CONFIG)
    with server.management() as management:
        register(server, echo)
        models = plan_server(make_settings(echo)).models
        with pytest.raises(ExpectedError, match="deviceType is cpu.*asks for 'gpu'"):
            check_in_force(models, management)
        (status,) = check_in_force(models, management, allow_cpu=True)
        change_models(server.management_url, "DELETE", "/models/on-gpu")
    assert (status.device, status.engine) == ("cpu", "-")


@pytest.mark.server
def test_server_that_differs_is_found_out(server: TorchServe) -> None:
    """TorchServe turns a delay of 0 into 100 ms and prefers a registration's batch size."""
    store = server.settings.model_store
    zero = write_mar(store, "zero", {**MODEL_CONFIG, "maxBatchDelay": 0})
    echo = write_mar(store, "echo")
    with server.management() as management:
        check_in_force(server.plan.models, management)
        register(server, zero)
        with pytest.raises(
            ExpectedError, match="(?s)^the server does not .*Delay is 100.* asks for 0"
        ):
            check_in_force(plan_server(make_settings(zero)).models, management)
        register(server, echo, batch_size=2)
        with pytest.raises(ExpectedError, match="batchSize is 2.* asks for 4"):
            check_in_force(plan_server(make_settings(echo)).models, management)
        with pytest.raises(ExpectedError, match="absent"):
            absent = replace(make_settings(echo), models=("absent=echo.mar",))
            check_in_force(plan_server(absent).models, management)
        for name in ("zero", "echo"):
            change_models(server.management_url, "DELETE", f"/models/{name}")
