from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpath.handler.process import host_limits
from offpath.serving.check.files import check_archive, check_config
from offpath.serving.check.host import check_host
from offpath.serving.finding import State
from offpath.serving.server.properties import find_config, read_properties
from tests.support.echo_archive import MODEL_CONFIG, MakeMar


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


def test_a_door_takes_the_bodies_and_running_java_wins_over_the_file() -> None:
    file = {"vmargs": "-XX:+UseG1GC -Xmx100m", "job_queue_size": "200"}
    assert "queue and heap" not in states(file | {"inference_address": "unix:/run/o/door.sock"})
    running = states(file, "java -XX:+UseSerialGC")
    assert (running["collector"], running["heap"]) == (State.OK, State.LOST)


def states_of_archive(path: Path) -> dict[str, State]:
    return {one.subject: one.state for one in check_archive(path)}


def test_our_archive_is_ok(model_store: Path) -> None:
    assert set(states_of_archive(model_store / "near-free.mar").values()) == {State.OK}


@pytest.mark.parametrize(
    ("config", "subject", "state"),
    [
        (None, "batch settings", State.LOST),
        (MODEL_CONFIG, "handler", State.LOST),
        ({**MODEL_CONFIG, "maxBatchDelay": 0}, "maxBatchDelay", State.WRONG),
        ({**MODEL_CONFIG, "batchsize": 8}, "batchsize", State.WRONG),
        ({**MODEL_CONFIG, "maxWorkers": 1000}, "workers", State.LOST),
        pytest.param(
            {**MODEL_CONFIG, "deviceType": "gpu"},
            "device",
            State.WRONG,
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU"),
        ),
    ],
)
def test_settings_that_do_not_work_here_are_found(
    make_mar: MakeMar, config: dict | None, subject: str, state: State
) -> None:
    assert states_of_archive(make_mar(config=config))[subject] == state


def test_other_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"none")
    assert states_of_archive(tmp_path / "a.mar") == {"archive": State.WRONG}


def test_containers_cpu_limit_counts_as_its_cores(
    make_mar: MakeMar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(host_limits, "CPU_LIMIT", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    mar = make_mar(config={**MODEL_CONFIG, "maxWorkers": 4})
    assert states_of_archive(mar)["workers"] == State.LOST
    cores = next(one for one in check_host() if one.subject == "cores")
    assert (cores.state, cores.found) == (State.LOST, "64, of which this container may use 2")


@pytest.mark.parametrize(
    ("hard", "cure"), [(256, "raise the hard limit: LimitNOFILE="), (4096, "ulimit -n 4096")]
)
def test_the_cure_for_few_open_files_is_one_that_helps(
    monkeypatch: pytest.MonkeyPatch, hard: int, cure: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, hard))
    found = next(one for one in check_host() if one.subject == "open files")
    assert found.state is State.LOST and found.cure.startswith(cure)
