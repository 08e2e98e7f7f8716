"""`offpath export ray`: its files; test_adapters.py has a real Ray, test_replies.py its replies."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from offpath.archive.mar_file import copy_mar, read_mar
from offpath.deploy.ray.ray_export import export_ray

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


@pytest.fixture
def gpu_archive(archive, tmp_path):
    settings = {"batchSize": 16, "maxBatchDelay": 5, "maxWorkers": 2}
    settings["deviceType"] = "gpu"
    copy_mar(read_mar(archive), tmp_path / "gpu.mar", {CONFIG: yaml.safe_dump(settings).encode()})
    return tmp_path / "gpu.mar"


def test_replicas_share_the_gpu_and_a_pod_has_it(gpu_archive, tmp_path):
    output = tmp_path / "app"
    export_ray(gpu_archive, output, cpus=2)
    (application,) = read_yaml(output)["applications"]
    (deployment,) = application["deployments"]
    assert deployment["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 0.5}
    cluster = read_yaml(output, "rayservice.yaml")["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["resources"]["requests"]["cpu"] == "4"
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize("replicas", [1, 3, 6, 7, 11, 13, 64])
def test_all_replicas_fit_on_one_gpu(replicas, gpu_archive, tmp_path):
    export_ray(gpu_archive, tmp_path / "app", (1, replicas))
    (application,) = read_yaml(tmp_path / "app")["applications"]
    share = application["deployments"][0]["ray_actor_options"]["num_gpus"]
    parts = round(share * 10_000)  # Ray rounds to these
    assert 10_000 - replicas < parts * replicas <= 10_000
