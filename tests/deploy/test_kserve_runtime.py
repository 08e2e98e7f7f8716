"""KServe's runtime and its program `torchserve`, with the paths and the file of KServe's samples.

kserve_crds.json has the parts of KServe's own schemas (charts/kserve-crd, commit aaac4e29) that the
two manifests use; whatever else they contain is an error.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import jsonschema
import pytest
import yaml

from offpath.serving.check.spelling import find_unread_properties
from offpath.serving.server.properties import parse_properties
from tests.deploy.containers import read_event_ids, run_container
from tests.support.images import jpeg
from tests.support.monitoring import DEPLOY

KSERVE = DEPLOY / "kserve"
SCHEMAS = json.loads(Path(__file__).with_name("kserve_crds.json").read_text())
RUNTIME = yaml.safe_load((KSERVE / "runtime.yaml").read_text())
(CONTAINER,) = RUNTIME["spec"]["containers"]
# docs/samples/v1beta1/torchserve/v1/config.properties of KServe.
CONFIG = """
inference_address=http://0.0.0.0:8085
management_address=http://0.0.0.0:8085
metrics_address=http://0.0.0.0:8082
grpc_inference_port=7070
grpc_management_port=7071
enable_metrics_api=true
metrics_format=prometheus
number_of_netty_threads=4
job_queue_size=10
enable_envvars_config=true
install_py_dep_per_model=true
model_store=/mnt/models/model-store
model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"near-free":{"1.0":{"defaultVersion":true,\
"marName":"near-free.mar","minWorkers":1,"maxWorkers":5,"batchSize":1,"maxBatchDelay":5000,"responseTimeout":120}}}}
"""
# What the samples add to the runtime's own arguments.
MORE_ARGUMENTS = ["--disable-token-auth", "--enable-model-api"]


@pytest.mark.parametrize("file", ["runtime.yaml", "inferenceservice.yaml"])
def test_kserves_schemas_accept_the_manifests(file: str) -> None:
    manifest = yaml.safe_load((KSERVE / file).read_text())
    schema = SCHEMAS[manifest["kind"]]
    assert manifest["apiVersion"] == schema["apiVersion"]
    jsonschema.validate(manifest["spec"], schema["spec"])
    manifest["spec"]["misspelt"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest["spec"], schema["spec"])


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        pytest.param(["--start", *MORE_ARGUMENTS, "--foreground", "--ncs"], [], id="torchserves"),
        pytest.param(["--limit", "queue=9", "--start"], ["--limit", "queue=9"], id="offpaths"),
        pytest.param(["--workflow-store=/w x"], ["--workflow-store=/w x"], id="unknown"),
        pytest.param(["--ts-config=/dev/null/none"], [], id="no-config"),
    ],
)
def test_arguments_of_torchserve_become_those_of_offpath(
    tmp_path: Path, given: list[str], passed: list[str]
) -> None:
    (tmp_path / "serve").write_text('#!/bin/sh\nprintf "%s\\n" "$OFFPATH_MODEL_DIR" "$@"\n')
    (tmp_path / "serve").chmod(0o755)
    (tmp_path / "config").touch()
    files = ["--model-store=/a store", f"--ts-config={tmp_path}/config"]
    config = ["--config", f"{tmp_path}/config"] if "config" not in given[0] else []
    done = subprocess.run(
        [KSERVE / "torchserve", *files, *given],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    own = ["--metrics-host", "0.0.0.0", "--also-port", "8085"]
    assert done.stdout.splitlines() == ["/a store", *own, *config, *passed]


def test_no_key_of_kserves_sample_is_refused() -> None:
    assert [*find_unread_properties("", parse_properties(CONFIG))] == []


@pytest.fixture
def pod(model_store: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A container's processes with a model store and KServe's config.properties, and its port."""
    store = tmp_path / "models" / "model-store"
    store.mkdir(parents=True)
    shutil.copy(model_store / "near-free.mar", store)
    config = tmp_path / "models" / "config.properties"
    config.write_text(CONFIG)
    command = ["torchserve", "--start", f"--model-store={store}", f"--ts-config={config}"]
    command += [*MORE_ARGUMENTS, "--metrics-port=0"]
    ping = "/v1/models/near-free"
    with run_container(command, tmp_path, "PORT", ping, TS_SERVICE_ENVELOPE="kserve") as running:
        yield running


@pytest.mark.slow
@pytest.mark.server
def test_a_pod_of_kserves_sample_answers_and_ends_in_time(
    pod: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    process, port = pod
    body = {"instances": [{"data": base64.b64encode(jpeg(size=(500, 333))).decode()}] * 2}
    ids = []
    for one in (port, 8085):
        reply = httpx.post(f"http://127.0.0.1:{one}/v1/models/near-free:predict", json=body)
        assert len(reply.json()["predictions"]) == 2
        ids.append(reply.headers["x-request-id"])
        assert httpx.get(f"http://127.0.0.1:{one}{CONTAINER['readinessProbe']['httpGet']['path']}")
        # config.properties asks for the management API on all addresses.
        assert httpx.delete(f"http://127.0.0.1:{one}/models/near-free").status_code >= 401
    process.terminate()
    assert process.wait(timeout=30) in (0, 143)
    assert set(read_event_ids(tmp_path)) == {f"{one}.{n}" for one in ids for n in (0, 1)}
