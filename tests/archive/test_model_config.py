from __future__ import annotations

from typing import Any

import pytest

from offpath.archive.model_config import load_preset, make_model_config, merge_preprocessing
from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import decode_budget_s


@pytest.mark.parametrize("name", ["cpu", "t4"])
def test_embedded_presets_are_complete(name: str) -> None:
    config = make_model_config(load_preset(name), {}, {})
    assert config.settings["handler"] == {}
    serving = config.serving
    # A batch of the costliest images, 2 s each on one thread, is decoded before TorchServe ends
    # the worker.
    assert serving.batch_size * 2 <= decode_budget_s(serving.response_timeout_s)


@pytest.mark.parametrize(
    ("server", "handler", "message"),
    [
        ({"minWorkers": 0}, {}, "minWorkers is 0"),
        ({"minWorkers": 3, "maxWorkers": 2}, {}, "minWorkers 3 is above maxWorkers 2"),
        ({"deviceType": "tpu"}, {}, "deviceType is 'tpu'; accepted: cpu, gpu"),
        ({"deviceIds": [0, -1]}, {}, "deviceIds is .0, -1.; accepted: a list of GPUs"),
        ({"batch_size": 8}, {}, "unknown setting 'batch_size'; did you mean batchSize"),
    ],
)
def test_wrong_setting_names_it_and_what_is_accepted(
    server: dict[Any, Any], handler: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExpectedError, match=message):
        make_model_config(load_preset("cpu"), server, handler)


@pytest.mark.parametrize(
    ("settings", "merged"),
    [
        ({}, {"image_size": 224, "resize_size": 248, "mean": [0.5] * 3}),
        ({"image_size": 256}, {"image_size": 256, "mean": [0.5] * 3}),
        (
            {"resize": "stretch"},
            {"image_size": 224, "resize": "stretch", "mean": [0.5] * 3},
        ),
        (
            {"channels": 1, "std": 0.2},
            {"image_size": 224, "resize_size": 248, "channels": 1, "std": 0.2},
        ),
    ],
)
def test_values_derived_from_a_replaced_setting_are_dropped(
    settings: dict[str, Any], merged: dict[str, Any]
) -> None:
    own = {"image_size": 224, "resize_size": 248, "mean": [0.5] * 3}
    assert merge_preprocessing(own, settings) == merged
