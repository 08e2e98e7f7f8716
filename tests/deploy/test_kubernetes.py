"""The Helm chart: rendered by Helm's own library, checked against Kubernetes' schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from offpath.commands.logs import ship
from offpath.commands.serve import command as serve
from offpath.serving.front.bodies import LEAST_BODIES
from offpath.serving.torchserve.properties import read_properties
from tests.support.monitoring import DEPLOY

CHART = DEPLOY / "kubernetes"
CONFIG = DEPLOY.parent / "config.properties"
# The oldest that the chart names, and the newest that has schemas.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
# No schemas of theirs are in Kubernetes'.
CUSTOM = {"ScaledObject", "ServiceMonitor"}
EVERYTHING: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "configProperties": "max_request_size=1\njob_queue_size=2\n",
    "tls": {"secretName": "certificate"},
    "tokens": {"secretName": "tokens"},
    "modelStore": {"persistentVolumeClaim": {"claimName": "models"}},
    "predictionLog": {"uri": "s3://bucket/prefix"},
    "gpus": 1,
    "runtimeClassName": "nvidia",
    "env": {"AWS_REGION": "eu-central-1"},
    "extraArgs": ["--allow-cpu"],
    "image": {"pullSecrets": [{"name": "registry"}]},
    "serviceAccount": {"name": "writer", "annotations": {"role": "arn"}},
}
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
VALUES = [
    pytest.param({}, id="as it comes"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param(GPU, id="gpu"),
    pytest.param(
        {
            "serviceAccount": {"create": False},
            "predictionLog": {"sidecar": {"enabled": False}},
            "networkPolicy": {"from": [], "metricsFrom": []},
        },
        id="next to nothing",
    ),
]


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def render(chart: helm.Chart, values: dict[str, Any]) -> dict[str, Any]:
    """The objects by `Kind/name`."""
    texts = chart.render(values, name="defects", namespace="vision").values()
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}


def find_pod(chart: helm.Chart, values: dict[str, Any]) -> dict[str, Any]:
    return render(chart, values)["Deployment/defects-offpath"]["spec"]["template"][
        "spec"
    ]


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
    """Why it refuses an object, None where it takes it or has no schema of it."""
    if one["kind"] in CUSTOM:
        return None
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return None


def test_helm_finds_nothing_to_complain_of() -> None:
    report = helm.lint(CHART, EVERYTHING, strict=True)
    assert [m for m in report["messages"] if m["severity"] > 1] == []


def test_all_that_was_asked_for_is_there(chart: helm.Chart) -> None:
    kinds = {key.partition("/")[0] for key in render(chart, EVERYTHING)}
    assert kinds == {
        *("Deployment", "Service", "PodDisruptionBudget", "ConfigMap"),
        *("NetworkPolicy", "ServiceAccount", *CUSTOM),
    }


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
        # What a trial of the image needed to write: scripts/image.sh.
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        wanted = {"/tmp", "/spool"}
        if container["name"] == "server":
            wanted |= {"/logs", "/dev/shm"}
        assert wanted <= mounted
        assert {m["name"] for m in container["volumeMounts"]} <= {
            volume["name"] for volume in pod["volumes"]
        }


@pytest.mark.parametrize("values", VALUES)
def test_the_commands_are_ones_that_offpath_takes(
    chart: helm.Chart, values: dict[str, Any]
) -> None:
    pod = find_pod(chart, values)
    (server,) = pod["containers"]
    arguments = [*server["command"][2:], *server.get("args", [])]
    context = serve.make_context("serve", [*without_files(arguments)])
    assert context.params["models"] == ("/models",)
    assert context.params["host"] == "0.0.0.0"
    for sidecar in pod.get("initContainers", []):
        parsed = ship.make_context("ship", sidecar["command"][3:])
        assert parsed.params["watch"] and sidecar["restartPolicy"] == "Always"


def without_files(arguments: list[str]) -> list[str]:
    """Less the options whose files are in no volume here."""
    files = ("--tls-", "--tokens", "--config")
    return [one for one in arguments if not one.startswith(files)]


def test_the_bodies_have_the_room_that_the_door_asks_for(chart: helm.Chart) -> None:
    (shm,) = [v for v in find_pod(chart, {})["volumes"] if v["name"] == "shm"]
    assert shm["emptyDir"]["medium"] == "Memory"
    largest = int(read_properties(CONFIG)["max_request_size"])
    assert parse_bytes(shm["emptyDir"]["sizeLimit"]) >= LEAST_BODIES * largest


def parse_bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG])i", quantity).groups()  # type: ignore
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit]


def test_the_grace_period_holds_every_part_of_the_end(chart: helm.Chart) -> None:
    timing = {"preStop": 7, "drain": 100, "ship": 50}
    pod = find_pod(chart, {"timing": timing})
    assert pod["terminationGracePeriodSeconds"] > sum(timing.values())
    (server,) = pod["containers"]
    assert server["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert "--drain-s=100" in server["args"]


def test_an_empty_list_lets_nobody_in(chart: helm.Chart) -> None:
    values = {"networkPolicy": {"from": [], "metricsFrom": []}}
    policy = render(chart, values)["NetworkPolicy/defects-offpath"]["spec"]
    assert not policy["ingress"] and "Ingress" in policy["policyTypes"]


def test_the_monitor_finds_the_metrics_service_alone(chart: helm.Chart) -> None:
    objects = render(chart, EVERYTHING)
    wanted = objects["ServiceMonitor/defects-offpath"]["spec"]["selector"][
        "matchLabels"
    ]
    found = [
        key
        for key, one in objects.items()
        if key.startswith("Service/")
        and wanted.items() <= one["metadata"]["labels"].items()
    ]
    assert found == ["Service/defects-offpath-metrics"]
    query = objects["ScaledObject/defects-offpath"]["spec"]["triggers"][0]["metadata"]
    assert 'service="defects-offpath-metrics"' in query["query"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"queu": 1}, "'queu' not allowed"),
        ({"tls": {"secretname": "x"}}, "'secretname' not allowed"),
        ({"replicas": -1}, "at '/replicas': minimum"),
        ({"predictionLog": {"uri": "bucket"}}, "at '/predictionLog/uri'"),
        ({"sharedMemory": "1 GB"}, "at '/sharedMemory'"),
        ({"extraArgs": ["allow-cpu"]}, "at '/extraArgs/0'"),
        ({"modelStore": {"a": {}, "b": {}}}, "at '/modelStore'"),
        ({"autoscaling": {"prometheusAddress": "host:9090"}}, "prometheusAddress"),
        ({"timing": {"unhealthy": 1}}, "at '/timing/unhealthy'"),
        ({"env": {"A": 1}}, "at '/env/A'"),
    ],
)
def test_a_wrong_value_is_named(
    chart: helm.Chart, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(helm.HelmValuesError, match=re.escape(said)):
        render(chart, values)


def test_every_value_has_its_schema(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    assert set(chart.values) <= set(schema["properties"])
    for name, value in chart.values.items():
        known = schema["properties"][name].get("properties")
        if known:
            assert set(value) <= set(known), name
