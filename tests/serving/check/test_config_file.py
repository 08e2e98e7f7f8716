from __future__ import annotations

import pytest

from offpath.serving.check.files import check_config
from offpath.serving.finding import State
from offpath.serving.server.server_settings import find_config, read_properties


def states(properties: dict[str, str], vmargs: str | None = None) -> dict[str, State]:
    return {one.subject: one.state for one in check_config(properties, vmargs)}


def test_our_configuration_has_only_ok_findings() -> None:
    found = states(read_properties(find_config()))
    assert len(found) > 8 and set(found.values()) == {State.OK}


def test_every_line_to_copy_cures_its_finding() -> None:
    properties: dict[str, str] = {}
    lost = [one for one in check_config(properties) if one.state is State.LOST]
    assert len(lost) > 6
    for one in lost:
        key, _, value = one.cure.partition("=")
        properties[key] = value
    assert set(states(properties).values()) == {State.OK}


@pytest.mark.parametrize(
    ("properties", "subject", "state"),
    [
        ({"batch_size": "8"}, "batch_size", State.WRONG),
        ({"maxBatchDelay": "8"}, "maxBatchDelay", State.WRONG),
        ({"job_queue_sise": "8"}, "job_queue_sise", State.WRONG),
        ({"vmargs": "-XX:+UseG1GC"}, "collector", State.LOST),
        ({"vmargs": "-XX:+UseG1GC -XX:G1HeapRegionSize=16m"}, "collector", State.OK),
        ({"vmargs": "-XX:+UseG1GC -XX:+UseParallelGC"}, "collector", State.OK),
        ({"vmargs": "-Xmx100m", "job_queue_size": "200"}, "queue and heap", State.LOST),
        ({"prefer_direct_buffer": "true", "vmargs": "-Xmx1g"}, "buffers", State.LOST),
        ({"metrics_config": "/no/such/file.yaml"}, "our metrics", State.LOST),
        ({"model_metrics_auto_detect": "true"}, "our metrics", State.OK),
        (
            {"inference_address": "http://0.0.0.0:8080", "disable_token_authorization": "true"},
            "inference_address",
            State.LOST,
        ),
        (
            {"management_address": "http://0.0.0.0:8081", "disable_token_authorization": "true"},
            "management_address",
            State.WRONG,
        ),
        ({"enable_model_api": "true"}, "allowed_urls", State.WRONG),
    ],
)
def test_losses_and_errors_are_found(
    properties: dict[str, str], subject: str, state: State
) -> None:
    assert states(properties)[subject] == state


def test_bodies_behind_the_front_door_do_not_fill_the_heap() -> None:
    file = {"vmargs": "-Xmx100m", "job_queue_size": "200"}
    assert "queue and heap" not in states(file | {"inference_address": "unix:/run/o/door.sock"})


def test_running_java_wins_over_the_file() -> None:
    file = {"vmargs": "-XX:+UseG1GC -Xmx1g"}
    assert states(file, "java -XX:+UseSerialGC")["collector"] == State.OK
    assert states(file, "java -XX:+UseSerialGC")["heap"] == State.LOST
