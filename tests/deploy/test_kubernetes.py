"""The Helm chart: rendered by Helm's own library, checked against Kubernetes' schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from offpath.commands.logs import ship
from offpath.commands.serve import command as serve
from offpath.serving.front import nginx
from offpath.serving.server import server
from tests.support.monitoring import DEPLOY

CHART = DEPLOY / "kubernetes"
# The oldest that the chart names, and the newest that has schemas.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
# Kinds of others, without a schema in Kubernetes.
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}
SECRET = {"secretKeyRef": {"name": "hub", "key": "token"}}
EVERYTHING: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
    "priorityClassName": "online",
    "podAnnotations": {"team": "vision"},
    "envFrom": [{"secretRef": {"name": "aws"}}, {"configMapRef": {"name": "site"}}],
    "extraVolumes": [{"name": "labels", "configMap": {"name": "labels"}}],
    "extraVolumeMounts": [{"name": "labels", "mountPath": "/labels"}],
    "configProperties": "max_request_size=1\njob_queue_size=2\n",
    "tls": {"secretName": "certificate"},
    "tokens": {"secretName": "tokens"},
    "modelStore": {"persistentVolumeClaim": {"claimName": "models"}},
    "predictionLog": {"uri": "s3://bucket/prefix"},
    "gpus": 1,
    "runtimeClassName": "nvidia",
    "env": {"AWS_REGION": "eu-central-1", "HUB_TOKEN": SECRET},
    "extraArgs": ["--allow-cpu"],
    "image": {
        "pullSecrets": [{"name": "registry"}],
        "digest": "sha256:" + 64 * "0",
    },
    "serviceAccount": {"name": "writer", "annotations": {"role": "arn"}},
}
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
GRANIAN = yaml.safe_load((CHART / "values-granian.yaml").read_text())
# What `offpath serve` may take after the drain.
SHUTDOWN_S = nginx.SHUTDOWN_SLACK_S + server.STOP_TIMEOUT_S + nginx.STOP_TIMEOUT_S
VALUES = [
    pytest.param({}, id="as it comes"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param(GPU, id="gpu"),
    pytest.param(GRANIAN, id="granian"),
    pytest.param(
        {
            "serviceAccount": {"create": False},
            "predictionLog": {"sidecar": {"enabled": False}},
            "logs": {"enabled": False},
            "strategy": {"type": "Recreate"},
            "networkPolicy": {
                **{"from": [], "metricsFrom": []},
                **{"tracesTo": [], "egress": []},
            },
        },
        id="next to nothing",
    ),
]


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def render(chart: helm.Chart, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the objects by `Kind/name`."""
    texts = chart.render(values, name="defects", namespace="vision").values()
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}


def find_pod(chart: helm.Chart, values: dict[str, Any]) -> dict[str, Any]:
    return render(chart, values)["Deployment/defects-offpath"]["spec"]["template"]["spec"]


@pytest.mark.slow
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(
    chart: helm.Chart, values: dict[str, Any], version: str
) -> None:
    objects = render(chart, values)
    said = {name: ask_kubernetes(one, version) for name, one in objects.items()}
    assert said == dict.fromkeys(objects)
    # It would say so of a field that there is not.
    objects["Deployment/defects-offpath"]["spec"]["replica"] = 1
    assert ask_kubernetes(objects["Deployment/defects-offpath"], version)


def ask_kubernetes(one: dict[str, Any], version: str) -> str | None:
    """Returns why Kubernetes refuses an object, None if it accepts it or has no schema."""
    if one["kind"] in CUSTOM:
        return None
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("values", VALUES)
def test_nothing_runs_as_root_or_writes_beside_its_volumes(
    chart: helm.Chart, values: dict[str, Any]
) -> None:
    pod = find_pod(chart, values)
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        # The folders that a trial of the image wrote to: scripts/image.sh.
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        wanted = {"ship": {"/tmp", "/spool"}, "logs": {"/logs"}}
        wanted["server"] = {"/tmp", "/spool", "/logs", "/dev/shm"}
        assert wanted[container["name"]] <= mounted
        assert {m["name"] for m in container["volumeMounts"]} <= {
            volume["name"] for volume in pod["volumes"]
        }


@pytest.mark.parametrize("values", VALUES)
def test_the_commands_are_ones_that_offpath_takes(
    chart: helm.Chart, values: dict[str, Any]
) -> None:
    pod = find_pod(chart, values)
    containers = list_containers(pod)
    # A `command` would replace the image's entry point, which is the init process.
    assert not any("command" in container for container in containers.values())
    program, name, *arguments = containers["server"]["args"]
    assert (program, name) == ("offpath", "serve")
    context = serve.make_context("serve", without_files(arguments))
    assert context.params["models"] == ("/models",)
    assert context.params["host"] == "0.0.0.0"
    assert context.params["server"] == values.get("server", "torchserve")
    assert all(
        container["restartPolicy"] == "Always" for container in pod.get("initContainers", [])
    )
    if "ship" in containers:
        assert containers["ship"]["args"][:3] == ["offpath", "logs", "ship"]
        parsed = ship.make_context("ship", containers["ship"]["args"][3:])
        assert parsed.params["watch"]


def list_containers(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        container["name"]: container
        for container in [*pod.get("initContainers", []), *pod["containers"]]
    }


def without_files(arguments: list[str]) -> list[str]:
    """Less the options whose files are in no volume here."""
    files = ("--tls-", "--tokens", "--config")
    return [one for one in arguments if not one.startswith(files)]


def test_the_grace_period_holds_every_part_of_the_end(chart: helm.Chart) -> None:
    timing = {"unready": 7, "drain": 100, "ship": 50}
    pod = find_pod(chart, {"timing": timing})
    rest_s = pod["terminationGracePeriodSeconds"] - sum(timing.values())
    assert rest_s > SHUTDOWN_S
    (container,) = pod["containers"]
    assert {"--unready-s=7", "--drain-s=100"} <= set(container["args"])


@pytest.mark.parametrize("values", VALUES)
def test_no_pod_is_killed_for_its_models_once_they_were_ready(
    chart: helm.Chart, values: dict[str, Any]
) -> None:
    (server,) = find_pod(chart, values)["containers"]
    paths = {name: probe["httpGet"]["path"] for name, probe in server.items() if "Probe" in name}
    models = dict.fromkeys(("startupProbe", "readinessProbe"), "/ping")
    assert paths == {**models, "livenessProbe": "/live"}
    start = server["startupProbe"]
    start_s = start["periodSeconds"] * start["failureThreshold"]
    assert start_s == values.get("timing", {}).get("startup", 300)


def test_an_empty_list_lets_nobody_in(chart: helm.Chart) -> None:
    values = {"networkPolicy": {"from": [], "metricsFrom": []}}
    policy = render(chart, values)["NetworkPolicy/defects-offpath"]["spec"]
    assert not policy["ingress"] and "Ingress" in policy["policyTypes"]


def test_the_alerts_are_those_of_prometheus_for_one_release(
    chart: helm.Chart, tmp_path: Path
) -> None:
    rule = render(chart, EVERYTHING)["PrometheusRule/defects-offpath"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    ours = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    (group,), (own,) = rule["spec"]["groups"], ours["groups"]
    labels = 'job="offpath", namespace="vision", service="defects-offpath-metrics"'
    for alert, expected in zip(group["rules"], own["rules"], strict=True):
        selected = alert["expr"].count("{" + labels)
        assert selected == expected["expr"].count('{job="offpath"') > 0
        assert alert.get("annotations") == expected.get("annotations")
    if shutil.which("promtool"):
        rules = tmp_path / "rules.yml"
        rules.write_text(yaml.safe_dump(rule["spec"]))
        subprocess.run(["promtool", "check", "rules", rules], check=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"queu": 1}, "'queu' not allowed"),
        ({"predictionLog": {"uri": "bucket"}}, "at '/predictionLog/uri'"),
        ({"sharedMemory": "511Mi"}, "at '/sharedMemory'"),
    ],
)
def test_a_wrong_value_is_named(chart: helm.Chart, values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=re.escape(said)):
        render(chart, values)


def test_helm_finds_nothing_to_complain_of() -> None:
    report = helm.lint(CHART, EVERYTHING, strict=True)
    assert [m for m in report["messages"] if m["severity"] > 1] == []
