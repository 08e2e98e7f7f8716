"""`offpath export ray`: its files and refusals; a real Ray answers where one is set up (`slow`)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from offpath.archive.mar_file import copy_mar, read_mar
from offpath.deploy.ray.export import export_ray
from offpath.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.exported import OffpathRay
from tests.support.photographs import PHOTOGRAPHS, encode

CONFIG = "model-config.yaml"


@pytest.fixture
def archive(model_store: Path) -> Path:
    return model_store / "near-free.mar"


def read_yaml(folder: Path, name: str = "config.yaml"):
    return yaml.safe_load((folder / name).read_text())


def test_the_application_has_the_archives_settings(archive, tmp_path):
    export_ray(archive, tmp_path / "app", cpus=2)
    config = read_mar(archive).model_config
    settings = json.loads((tmp_path / "app" / "settings.json").read_text())
    assert settings["batch_size"] == config["batchSize"]
    assert settings["max_batch_delay_ms"] == config["maxBatchDelay"]
    assert settings["response_timeout_s"] == config["responseTimeout"]
    assert (settings["name"], settings["threads"]) == ("near-free", 2)
    served = read_yaml(tmp_path / "app")
    assert served["http_options"]["host"] == "127.0.0.1"
    (application,) = served["applications"]
    (deployment,) = application["deployments"]
    assert deployment["num_replicas"] == config["maxWorkers"]
    assert deployment["max_ongoing_requests"] > config["batchSize"]
    assert deployment["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 0}
    assert "ray[serve]" in (tmp_path / "app" / "requirements.txt").read_text()


def test_replicas_scale_between_two_numbers_by_what_is_in_flight(archive, tmp_path):
    export_ray(archive, tmp_path / "app", replicas=(1, 3))
    (application,) = read_yaml(tmp_path / "app")["applications"]
    scaling = application["deployments"][0]["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 3)
    batch_size = read_mar(archive).model_config["batchSize"]
    assert scaling["target_ongoing_requests"] == 2 * batch_size


def test_kuberay_gets_the_same_application(archive, tmp_path):
    export_ray(archive, tmp_path / "app")
    service = read_yaml(tmp_path / "app", "rayservice.yaml")
    assert service["kind"] == "RayService"
    served = read_yaml(tmp_path / "app")
    # Others reach a pod by its address.
    served["http_options"]["host"] = "0.0.0.0"
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == served
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (group,) = cluster["workerGroupSpecs"]
    assert 2 <= group["replicas"] == group["minReplicas"] < group["maxReplicas"]
    pod = group["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["image"].endswith(":TAG") and worker["securityContext"]["runAsNonRoot"]
    environ = {one["name"]: one["value"] for one in worker["env"]}
    assert environ["OFFPATH_SPOOL_DIR"] == worker["volumeMounts"][0]["mountPath"]
    # The pod's end takes longer than the drain, which takes longer than a replica's end.
    (hook,) = worker["lifecycle"]["preStop"].values()
    (deadline_s,) = re.findall(r"--deadline-remaining-seconds (\d+)", hook["command"][2])
    (deployment,) = served["applications"][0]["deployments"]
    ending_s = deployment["graceful_shutdown_timeout_s"]
    assert pod["terminationGracePeriodSeconds"] > int(deadline_s) > ending_s


@pytest.mark.parametrize("replicas", [(0, 2), (3, 1)])
def test_replicas_out_of_order_are_refused_before_anything_is_written(replicas, archive, tmp_path):
    with pytest.raises(ExpectedError, match="expected numbers from 1, in ascending"):
        export_ray(archive, tmp_path / "app", replicas=replicas)
    assert not (tmp_path / "app").exists()


def test_replicas_share_the_gpu_and_a_pod_has_it(archive, tmp_path):
    settings = {"batchSize": 16, "maxBatchDelay": 5, "maxWorkers": 2}
    settings["deviceType"] = "gpu"
    copy_mar(read_mar(archive), tmp_path / "gpu.mar", {CONFIG: yaml.safe_dump(settings).encode()})
    output = tmp_path / "app"
    export_ray(tmp_path / "gpu.mar", output, cpus=2)
    (application,) = read_yaml(output)["applications"]
    (deployment,) = application["deployments"]
    assert deployment["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 0.5}
    cluster = read_yaml(output, "rayservice.yaml")["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["resources"]["requests"]["cpu"] == "4"
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    model = load_model("near-free")
    settings = {**model.source.handler, "explanations": True}
    source = replace(model.source, handler=settings)
    server = OffpathRay(replace(model, source=source), 2)
    if server.why_not() is not None:
        pytest.skip(server.why_not())
    server.prepare(tmp_path_factory.mktemp("ray") / "folder")
    with server.running() as running:
        yield running


@pytest.mark.slow
@pytest.mark.server
def test_ray_answers_as_torchserve_does(running, server):
    """Near-free in both: every kind of body, and each kind of refusal."""
    jpeg = encode(PHOTOGRAPHS[0].rgb, "JPEG", quality=90)
    url = running.predict_url
    mine = f"{server.inference_url}/predictions/near-free"
    raw, form = httpx.post(url, content=jpeg), httpx.post(url, files={"data": jpeg})
    assert raw.json() == form.json() == httpx.put(url, content=jpeg).json()
    expected = httpx.post(mine, content=jpeg).json()
    assert raw.json() == pytest.approx(expected, abs=1e-4)
    assert list(raw.json()) == list(expected)
    assert "decode" in raw.headers["server-timing"]
    assert len(raw.headers.get_list("x-request-id")) == 1
    for body in (b"", b"no image", jpeg[:200]):
        theirs, ours = httpx.post(url, content=body), httpx.post(mine, content=body)
        assert (theirs.status_code, theirs.json()) == (ours.status_code, ours.json())
    root = url.removesuffix("/predictions/classifier")
    assert httpx.get(f"{root}/ping").json() == {"status": "Healthy"}
    assert httpx.get(url).json()["code"] == 405
    assert httpx.post(f"{root}/predictions/other", content=jpeg).status_code == 404
    assert httpx.post(url, content=bytes(40_000_000)).status_code == 413
    late = httpx.post(url, content=jpeg, headers={"x-request-timeout-ms": "0"})
    assert (late.status_code, late.json()["type"]) == (504, "DeadlineExceeded")
