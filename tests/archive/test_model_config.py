from __future__ import annotations

from typing import Any

import pytest

from offpath.archive.model_config import (
    SERVER_SETTINGS,
    load_preset,
    make_model_config,
    merge_preprocessing,
)
from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import decode_budget_s


@pytest.mark.parametrize("name", ["cpu", "t4"])
def test_embedded_presets_are_complete(name: str) -> None:
    config = make_model_config(load_preset(name), {}, {})
    assert set(SERVER_SETTINGS) <= set(config.settings)
    assert config.settings["handler"] == {}
    serving = config.serving
    # A batch of the costliest images, 2 s each on one thread, is decoded before TorchServe ends
    # the worker.
    assert serving.batch_size * 2 <= decode_budget_s(serving.response_timeout_s)


@pytest.mark.parametrize("value", [0, -1, 600_001, "2", 2.0, None, True, [2]])
def test_delay_outside_its_range_is_refused(value: object) -> None:
    # 0 is no delay to us and 100 ms to TorchServe.
    with pytest.raises(ExpectedError) as caught:
        make_model_config(load_preset("cpu"), {"maxBatchDelay": value}, {})
    assert str(caught.value) == (
        f"maxBatchDelay is {value!r}; accepted: an integer from 1 to 600000"
    )


@pytest.mark.parametrize(
    ("server", "handler", "message"),
    [
        ({"batchSize": 0}, {}, "batchSize is 0"),
        ({"minWorkers": 0}, {}, "minWorkers is 0"),
        ({"minWorkers": 3, "maxWorkers": 2}, {}, "minWorkers 3 is above maxWorkers 2"),
        ({"deviceType": "tpu"}, {}, "deviceType is 'tpu'; accepted: cpu, gpu"),
        ({"deviceIds": [0, -1]}, {}, "deviceIds is .0, -1.; accepted: a list of GPUs"),
        ({"batch_size": 8}, {}, "unknown setting 'batch_size'; accepted: minWorkers"),
        ({3: 8}, {}, "unknown setting 3"),
        ({}, {"top_k": 0}, "handler.top_k is 0; accepted: an integer from 1"),
    ],
)
def test_wrong_setting_names_it_and_what_is_accepted(
    server: dict[Any, Any], handler: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExpectedError, match=message):
        make_model_config(load_preset("cpu"), server, handler)


@pytest.mark.parametrize("section", [[1], "decode", 3])
def test_presets_handler_section_must_be_a_mapping(section: object) -> None:
    with pytest.raises(ExpectedError, match="handler: must be a mapping"):
        make_model_config({**load_preset("cpu"), "handler": section}, {}, {})


def test_preset_that_lacks_settings_says_which() -> None:
    with pytest.raises(ExpectedError, match="lacks .*maxBatchDelay"):
        make_model_config({"batchSize": 8}, {}, {})


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


def test_completed_settings_are_a_copy_and_hold_only_what_changed() -> None:
    config = make_model_config(load_preset("cpu"), {}, {"engine": "openvino"})
    completed = config.with_handler(precision="fp32", activation="softmax")
    assert config.settings["handler"] == {"engine": "openvino"}
    assert config.handler.precision == "auto"
    # softmax is in force already.
    assert completed.settings["handler"] == {"engine": "openvino", "precision": "fp32"}
    assert completed.handler.precision == "fp32"
