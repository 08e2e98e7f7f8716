"""TorchServe's own Postman collections for its inference and KServe APIs, run by newman on Granian.

They are not part of this repository:

    git clone --depth 1 https://github.com/pytorch/serve /tmp/serve; npm install newman
    export OFFPATH_TORCHSERVE_REPOSITORY=/tmp/serve PATH=$PWD/node_modules/.bin:$PATH
    pytest -s -m slow tests/serving/granian/test_postman.py

The weights of their models are at pytorch.org. Networks stand in for them that give the answers
which the collections expect; handlers, labels and bodies are TorchServe's. Left out are the
requests that register and remove models, and what cannot run here is in `FAILURES`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from tests.support.certificates import write_certificate
from tests.support.echo_archive import write_archive
from tests.support.granian import GranianProcess, granian

VARIABLE = "OFFPATH_TORCHSERVE_REPOSITORY"
REPOSITORY = Path(os.environ.get(VARIABLE) or "/nonexistent")
POSTMAN = REPOSITORY / "test" / "postman"
NEWMAN = shutil.which("newman")
TIMEOUT_S = 600
# Granian's workers report their metrics once per second.
DELAY_MS = 2000


def find_obstacle() -> str | None:
    if NEWMAN is None:
        return "newman is not on the PATH (npm install newman)"
    if not POSTMAN.is_dir():
        return f"{VARIABLE} names no checkout of github.com/pytorch/serve"
    return None


pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(find_obstacle() is not None, reason=str(find_obstacle())),
]
PREDICT = "Model Zoo - Inference Model"
# Why requests fail, by collection, model and request.
FAILURES: dict[tuple[str, str, str], str] = {
    ("inference", model, PREDICT): "no stand-in: its handler needs a tokenizer of pytorch.org"
    for model in (
        "distill_bert_qa_eager",
        "bert_token_classification_no_torchscript",
        "bert_seqc_without_torchscript",
    )
}
FAILURES["kserve-older", "mnist", "Model Zoo - Explanations Model"] = (
    "it wants captum's numbers for weights of pytorch.org"
)
for secure, mnist in {
    "https": "squeezenet1_1",
    "https-kserve": "mnist",
    "https-kservev2": "mnist",
}.items():
    FAILURES[secure, mnist, "HTTPS Inference API  Description"] = "the API is at /openapi.json"
    FAILURES[secure, mnist, "HTTPS Metrics API Description"] = "metrics have no TLS"


@dataclass(frozen=True)
class Collection:
    """One collection.

    Attributes:
        data: the file with its data; without one it has one row, as `SECURE` says.
        envelope: TorchServe's, for this collection.
        is_secure: it asks by HTTPS.
    """

    file: str
    data: str = ""
    envelope: str = ""

    @property
    def is_secure(self) -> bool:
        return not self.data


COLLECTIONS = {
    "inference": Collection("inference_api_test_collection", "inference_data"),
    "long": Collection("inference_api_test_collection", "increased_timeout_inference"),
    "explanation": Collection("explanation_api_test_collection", "explanation_data"),
    "kserve": Collection("kf_api_test_collection", "kf_inference_data", "kserve"),
    "kserve-older": Collection("kf_inference_api_test_collection", "kf_inference_data", "kserve"),
    "kservev2": Collection("kfv2_api_test_collection", "kfv2_inference_data", "kservev2"),
    "https": Collection("https_test_collection"),
    "https-kserve": Collection("kf_https_test_collection", envelope="kserve"),
    "https-kservev2": Collection("kfv2_https_test_collection", envelope="kservev2"),
}
# The model of the collections without data.
SECURE = {
    "": {"model_name": "squeezenet1_1", "url": "", "expected": {"tabby": 0.9}},
    "kserve": {"model_name": "mnist", "url": "", "expected": "0"},
}
SECURE["kservev2"] = SECURE["kserve"]
FIXED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scores", torch.zeros(1000))

    def forward(self, images):
        return self.scores.repeat(images.shape[0], 1)
"""
DETECTOR = """
import torch


class Net(torch.nn.Module):
    def forward(self, images):
        found = {"boxes": torch.ones(1, 4), "labels": torch.ones(1), "scores": torch.ones(1)}
        found["labels"] = found["labels"].long()
        return [found for _ in images]
"""
SEGMENTER = """
from typing import Dict

import torch


class Net(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"out": torch.zeros(images.shape[0], 21, images.shape[2], images.shape[3])}
"""
# What a model's name begins with, and its class file, TorchServe's handler and its folder.
STAND_INS = {
    "fastrcnn": (DETECTOR, "object_detector", "object_detector"),
    "maskrcnn": (DETECTOR, "object_detector", "object_detector"),
    "fcn_": (SEGMENTER, "image_segmenter", "image_segmenter"),
    "deeplabv3_": (SEGMENTER, "image_segmenter", "image_segmenter"),
}
ONE = {"minWorkers": 1, "maxWorkers": 1}


def read_data(collection: Collection) -> list[dict[str, Any]]:
    if collection.is_secure:
        return [SECURE[collection.envelope]]
    rows: list[dict[str, Any]] = json.loads((POSTMAN / f"{collection.data}.json").read_text())
    return rows


def build_stand_in(store: Path, row: dict[str, Any]) -> None:
    """Builds an archive that answers as a row of the data expects."""
    name, examples = row["model_name"], REPOSITORY / "examples"
    is_script = "scripted" in row["url"]
    if name.startswith("mnist"):
        folder = examples / "image_classifier" / "mnist"
        source, handler = (folder / "mnist.py").read_text(), "mnist_handler.py"
        files = {handler: (folder / handler).read_text()}
        net = make_net(store.parent, source)
        expected = row["expected"]
        digit = expected if isinstance(expected, str) else next(iter(find_numbers(expected)))
        net.fc2.bias.data[int(digit)] = 1000.0
    elif isinstance(row.get("expected"), dict):
        folder = examples / "image_classifier"
        source, handler = FIXED, "image_classifier"
        labels = (folder / "index_to_name.json").read_text()
        files = {"index_to_name.json": labels}
        if name == "vgg16":
            handler = "vgg_handler.py"
            files[handler] = (folder / "vgg_16" / handler).read_text()
        net, index = make_net(store.parent, source), {
            v[1]: int(k) for k, v in json.loads(labels).items()
        }
        rest = 1 - sum(row["expected"].values())
        net.scores[:] = torch.tensor(rest / len(index)).log()
        for label, score in row["expected"].items():
            net.scores[index[label]] = torch.tensor(score).log()
    else:
        chosen = (made for start, made in STAND_INS.items() if name.startswith(start))
        source, handler, example = next(chosen)
        net, file = make_net(store.parent, source), examples / example / "index_to_name.json"
        files = {file.name: file.read_text()} if file.exists() else {}
    weights = store / "weights"
    if is_script:
        torch.jit.script(net.eval()).save(weights)
        entries = {"serializedFile": "net.pt"}
    else:
        torch.save(net.state_dict(), weights)
        entries = {"serializedFile": "net.pt", "modelFile": "net.py"}
    content = {**files, "net.py": source, "net.pt": weights.read_bytes()}
    write_archive(store, name, content, handler, ONE, **entries)
    weights.unlink()


def make_net(folder: Path, source: str) -> Any:
    """Makes the only network of a class file, which TorchScript reads again."""
    path = folder / f"net{len(list(folder.glob('*.py')))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.Net()


def find_numbers(value: object) -> Iterator[int]:
    """Yields the numbers of an expected reply's data."""
    if isinstance(value, list):
        for one in value:
            yield from [one] if type(one) is int else find_numbers(one)
    elif isinstance(value, dict):
        yield from find_numbers([value.get("predictions"), value.get("outputs"), value.get("data")])


def write_collection(collection: Collection, folder: Path, metrics_url: str) -> Path:
    """Writes a copy with this server's /metrics, and without requests to the management API."""
    content = json.loads((POSTMAN / f"{collection.file}.json").read_text())
    content["item"] = [
        item for item in content["item"] if "mgmt-port" not in item["request"]["url"]["raw"]
    ]
    for item in content["item"]:
        if item["request"]["url"]["raw"].endswith(":8082/metrics"):
            item["request"]["url"] = metrics_url
    path = folder / "collection.json"
    path.write_text(json.dumps(content))
    return path


def run_newman(
    collection: Collection, door: GranianProcess, folder: Path
) -> dict[tuple[str, str], str]:
    """Returns for each model and request what failed; empty where all passed."""
    rows, report = read_data(collection), folder / "report.json"
    address = urlsplit(door.url)
    command = [
        *(str(NEWMAN), "run", str(write_collection(collection, folder, door.metrics_url))),
        *("-e", str(POSTMAN / "environment.json"), "--insecure"),
        *("--delay-request", str(DELAY_MS)),
        *("--env-var", f"hostname={address.hostname}", "--env-var", f"pred-port={address.port}"),
        *("--env-var", f"sec-pred-port={address.port}", "--env-var", "sec-metric-port=1"),
        *("-r", "json", "--reporter-json-export", str(report)),
    ]
    if not collection.is_secure:
        command += ["-d", str(POSTMAN / f"{collection.data}.json")]
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        command, cwd=REPOSITORY / "test", env=environment, capture_output=True, timeout=TIMEOUT_S
    )
    assert report.exists(), (done.stdout + done.stderr).decode()
    found = {}
    for execution in json.loads(report.read_text())["run"]["executions"]:
        model = rows[execution["cursor"]["iteration"]]["model_name"]
        wrong = [
            f"{one['assertion']}: {one['error']['message']}"
            for one in execution.get("assertions", ())
            if one.get("error")
        ]
        if "requestError" in execution:
            wrong.append(str(execution["requestError"]))
        assert execution.get("assertions") or wrong  # a request without a test proves nothing
        found[model, execution["item"]["name"]] = "; ".join(wrong)
    return found


@pytest.mark.parametrize("name", COLLECTIONS)
def test_collection(name: str, tmp_path: Path) -> None:
    collection = COLLECTIONS[name]
    store = tmp_path / "store"
    store.mkdir()
    rows = read_data(collection)
    left_out = {model for one, model, request in FAILURES if one == name and request == PREDICT}
    for row in rows:
        if row["model_name"] not in left_out:
            build_stand_in(store, row)
    variables = {"TS_SERVICE_ENVELOPE": collection.envelope} if collection.envelope else {}
    options = ["--explanations"]
    if collection.is_secure:
        certificate, key = write_certificate(tmp_path)
        options += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with granian(store, tmp_path / "logs", *options, **variables) as door:
        found = run_newman(collection, door, tmp_path)
    failed = {(name, *request): why for request, why in found.items() if why}
    print(f"\n{name}: {len(found) - len(failed)} of {len(found)} requests passed")
    for (_, model, request), why in failed.items():
        reason = FAILURES.get((name, model, request), "UNEXPECTED")
        print(f"  {model}, {request}: {reason} ({why[:200]})")
    assert failed.keys() == {one for one in FAILURES if one[0] == name}
    assert any("nference" in request or "xplanation" in request for _, request in found)
