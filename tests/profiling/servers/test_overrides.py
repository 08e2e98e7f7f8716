"""Variants of a TorchServe by its settings: NAME=SERVER:KEY=VALUE;KEY=VALUE."""

from __future__ import annotations

import httpx
import pytest

from offpath.archive.mar_file import read_mar
from offpath.archive.photographs import find_sources
from offpath.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import make_servers
from offpath.serving.server.server_settings import find_config, read_properties


@pytest.fixture(scope="module")
def model():
    return load_model("near-free")


@pytest.fixture
def make(model):
    return lambda text: make_servers([], model, 2, [text])[0]


def test_keys_of_config_properties_go_over_those_of_the_server(make):
    heap = make("heap=offpath:prefer_direct_buffer=false")
    assert heap.name == "heap"
    assert heap.overrides == {"prefer_direct_buffer": "false"}
    fixed = make("one=torchserve-fixed:number_of_netty_threads=1;env.OMP_NUM_THREADS=2")
    assert fixed.overrides["number_of_netty_threads"] == "1"
    assert "ParallelGC" in fixed.overrides["vmargs"]
    assert fixed.settings["env"] == {"OMP_NUM_THREADS": "2"}


def test_further_java_options_follow_those_that_the_server_has(make):
    shipped = read_properties(find_config())["vmargs"]
    assert make("a=offpath:vmargs+=-Xmn600m").overrides == {"vmargs": f"{shipped} -Xmn600m"}
    fixed = make("a=torchserve-fixed:vmargs+=-Xmn1g").overrides["vmargs"]
    assert fixed == "-Xms2g -Xmx2g -XX:+UseParallelGC -Xmn1g"
    assert make("a=torchserve-stock:vmargs+=-Xmx1g").overrides == {"vmargs": "-Xmx1g"}
    assert make("a=offpath:vmargs=-Xmx3g").overrides == {"vmargs": "-Xmx3g"}


def test_settings_of_the_archive_are_changed_and_the_others_stay(make, model):
    (shipped,) = make_servers(["offpath"], model, 2)
    config = make(
        "a=offpath:model.batch_size=1;model.max_batch_delay_ms=7;model.workers=1;"
        "handler.engine=eager;handler.prediction_log={segment_max_age_s: 7}"
    ).config
    assert (config["batchSize"], config["maxBatchDelay"]) == (1, 7)
    assert (config["minWorkers"], config["maxWorkers"]) == (1, 1)
    assert config["handler"]["engine"] == "eager"
    assert config["handler"]["prediction_log"]["segment_max_age_s"] == 7
    assert config["responseTimeout"] == shipped.config["responseTimeout"]
    assert "handler" not in make("a=torchserve-fixed:model.batch_size=2").config


def test_several_models_share_an_archive_and_the_requests(make):
    three = make("a=offpath-granian:models=3")
    assert three.names == ["classifier", "classifier2", "classifier3"]
    assert three.call.more_paths == ("/predictions/classifier2", "/predictions/classifier3")
    assert three.settings["models"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("offpath", "expected NAME=SERVER", id="no-setting"),
        pytest.param("a=offpath", "expected NAME=SERVER", id="no-key"),
        pytest.param("=offpath:vmargs=x", "expected NAME=SERVER", id="no-name"),
        pytest.param("../a=offpath:vmargs=x", "no slash", id="path"),
        pytest.param("a=offpath:vmargs", "'vmargs' has no value", id="no-value"),
        pytest.param("a=offpath:io_ratio=1;io_ratio=2", "twice", id="twice"),
        pytest.param("a=nginx:vmargs=x", "no server 'nginx'", id="unknown-server"),
        pytest.param("a=mosec:vmargs=x", "no TorchServe", id="not-torchserve"),
        pytest.param(
            "a=offpath:job_queue=1",
            "no setting 'job_queue'.*job_queue_size.*model.workers",
            id="unknown-key",
        ),
        pytest.param(
            "a=offpath:inference_address=http://0.0.0.0:80",
            "no setting 'inference_address'",
            id="the-benchmarks-own",
        ),
        pytest.param("a=offpath:model.batchsize=1", "no setting 'model.batchsize'", id="model"),
        pytest.param("a=offpath:handler.no=1", "'no'", id="handler"),
        pytest.param("a=offpath:models=0", "models is '0', expected 1 to 64", id="models"),
        pytest.param("a=offpath:model.batch_size=0", "batchSize is 0", id="value"),
        pytest.param("a=offpath:handler.engine={", "engine", id="not-yaml"),
        pytest.param(
            "a=torchserve-fixed:handler.engine=eager",
            "'torchserve-fixed' does not have our handler",
            id="not-ours",
        ),
        pytest.param(
            "a=torchserve-stock:model.batch_size=8",
            "its archive has no settings",
            id="no-settings",
        ),
    ],
)
def test_what_cannot_be_is_named(text, said, make):
    with pytest.raises(ExpectedError, match=f"(?s){said}"):
        make(text)


@pytest.mark.slow
@pytest.mark.server
def test_a_started_variant_runs_with_its_settings(make, tmp_path):
    server = make("alone=offpath:model.batch_size=1;model.workers=1;vmargs+=-Doffpath.variant=yes")
    server.prepare(tmp_path / "alone")
    (archive,) = (tmp_path / "alone").glob("*.mar")
    assert read_mar(archive).model_config["batchSize"] == 1
    photograph = find_sources()[0].read_bytes()
    with server.running() as running:
        reply = httpx.post(running.predict_url, content=photograph, trust_env=False)
        assert reply.status_code == 200
        groups = running.groups()
        assert len(groups["workers"]) == 1
        java = open(f"/proc/{groups['frontend'][0]}/cmdline").read()
    assert "-Doffpath.variant=yes" in java
