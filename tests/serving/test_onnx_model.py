"""Exported ResNets from the file to a real TorchServe, compared with ONNX Runtime alone."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torchvision.models import resnet18
from torchvision.transforms import v2

from offpath.commands.archive import command
from offpath.handler.image.geometry import InputGeometry
from offpath.serving.client import Client
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.torchserve.server import TorchServe
from tests.support.photographs import PHOTOGRAPHS, encode

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.server, pytest.mark.slow]
CLASSES = 5
# Options, input, and whether the batch is fixed. The second is a person classifier's usual input.
NETS = {
    "square": (["--precision", "fp32"], (224, 224), False),
    "tall": (
        [
            *["--engine", "onnxruntime", "--set", "resize=stretch"],
            *["--set", "channel_order=bgr", "--set", "pixel_scale=255"],
            *["--set", "mean=[103.53,116.28,123.675]", "--set", "std=[57.375,57.12,58.395]"],
        ],
        (256, 128),
        True,
    ),
}


def export(path: Path, size: tuple[int, int], is_fixed: bool, shown: Any) -> None:
    """Exports a ResNet-18 with a head that tells the prepared photographs apart."""
    torch.manual_seed(0)
    model = resnet18(num_classes=CLASSES).eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(shown))
        gain = 2 / logits.std(0)
        model.fc.weight.mul_(gain[:, None])
        model.fc.bias.sub_(logits.mean(0)).mul_(gain)
    batch = None if is_fixed else ({0: torch.export.Dim("batch")},)
    images = torch.zeros(3, 3, *size)
    torch.onnx.export(
        model, (images,), path, dynamic_shapes=batch, external_data=False, verbose=False
    )


def prepare(payload: bytes, name: str) -> np.ndarray:
    """Prepares a photograph as the model's owner did, by torchvision."""
    image = Image.open(io.BytesIO(payload)).convert("RGB")
    steps = [v2.Resize((256, 128))]
    if name == "square":
        steps = [v2.Resize(256), v2.CenterCrop(224)]
    pixels = np.asarray(v2.Compose(steps)(image)) / 255
    normal = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    normal = normal if name == "square" else normal[..., ::-1]
    return normal.transpose(2, 0, 1).astype("f4")


def test_answers_are_onnx_runtimes_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    payloads = [encode(one.rgb, "JPEG", quality=95) for one in PHOTOGRAPHS]
    for name, (options, size, is_fixed) in NETS.items():
        shown = np.stack([prepare(payload, name) for payload in payloads])
        export(tmp_path / f"{name}.onnx", size, is_fixed, shown)
        arguments = ["--model", str(tmp_path / f"{name}.onnx"), "--output", str(store)]
        arguments += ["--name", name, "--set", "decode=exact", *options, "--json"]
        built = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert built.exit_code == 0, built.output
    settings = ServerSettings(
        model_store=store,
        models=tuple(f"{name}.mar" for name in NETS),
        **{"inference_port": 0, "management_port": 0, "metrics_port": 0},
    )
    with TorchServe(settings) as server, ThreadPoolExecutor(8) as pool:
        for name, (_, size, is_fixed) in NETS.items():
            session = onnxruntime.InferenceSession(
                str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"]
            )
            (given,) = session.get_inputs()
            assert (given.shape[0] == 3) == is_fixed
            logits = [
                session.run(None, {given.name: np.stack([prepare(one, name)] * 3)})[0][0]
                for one in payloads
            ]
            expected = torch.softmax(torch.tensor(np.stack(logits)), 1).numpy()
            assert expected.std(axis=0).max() > 0.05
            client = Client(server.inference_url, name)
            answers = [dict(one.labels) for one in pool.map(client.predict, payloads)]
            got = np.array([[row[str(c)] for c in range(CLASSES)] for row in answers])
            assert np.abs(got - expected).max() <= 0.01
            url = f"{server.management_url}/models/{name}?customized=true"
            described = httpx.get(url).json()[0]["customizedMetadata"]
            engine = "onnxruntime" if is_fixed else "openvino"
            assert (described["engine"], described["precision"]) == (engine, "fp32")
        resize = InputGeometry((256, 128), (256, 128), "stretch")
        with Client(server.inference_url, "tall", thin=True, geometry=resize) as thin:
            labels = dict(thin.predict(payloads[0]).labels)
        assert abs(labels["0"] - expected[0][0]) <= 0.03
        bad = httpx.post(f"{server.inference_url}/predictions/tall", content=b"junk")
        assert (bad.status_code, bad.json()["type"]) == (415, "UnsupportedFormat")
        explained = httpx.post(f"{server.inference_url}/explanations/tall", content=payloads[0])
        assert explained.json()["type"] == "ExplanationsClosed"
