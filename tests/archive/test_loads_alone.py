"""A built archive needs nothing of this repository, and its own handler wins over any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.handler_file import HandlerFile
from tests.archive.conftest import MakeSpec
from tests.guarantees import guarantee
from tests.support.images import jpeg

AnswerFrom = Callable[..., set[str]]
LABELS = ["red", "green", "blue"]
# Imports torch and TorchServe once. For each line of stdin a fork loads an unzipped archive as
# TorchServe's worker does, and answers a photograph.
PROGRAM = """
import json, os, sys, traceback
import torch, ts
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.model_loader import ModelLoaderFactory

def answer(folder, photo, first, path):
    os.chdir(os.path.dirname(folder))
    sys.path[1:1] = path
    for name in first:
        __import__(name)
    metrics = MetricsCacheYamlImpl(os.path.join(ts.__path__[0], "configs", "metrics.yaml"))
    metrics.initialize_cache()
    service = ModelLoaderFactory.get_model_loader().load(
        "model", folder, "classifier_entry.py", None, 2, None, True, metrics)
    service.set_cl_socket(None)
    with open(photo, "rb") as file:
        value = bytearray(file.read())
    parameter = {"name": "body", "contentType": "image/jpeg", "value": value}
    rows = [{"requestId": b"one", "headers": [], "parameters": [parameter]}]
    reply = bytes(service.predict(rows))
    ours = [m.__file__ for n, m in sys.modules.items() if n.startswith("offpath.")]
    return {"ours": ours, "answer": json.loads(reply[reply.index(b"{"):reply.index(b"}") + 1])}

assert not [name for name in sys.modules if name.startswith("offpath")]
for line in sys.stdin:
    if os.fork() == 0:
        try:
            said = answer(*json.loads(line))
        except BaseException:
            said = {"error": traceback.format_exc()}
        print("SAID", json.dumps(said), flush=True)
        os._exit(0)
    os.wait()
"""
POISON = "raise ImportError('somebody else is imported')"


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process outside the repository that loads archives."""
    home = tmp_path_factory.mktemp("home")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


def build_and_unzip(spec: ArchiveSpec, folder: Path) -> Path:
    archive = build_archive(spec, folder / "store").path
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "model")
    return folder / "model"


@pytest.fixture
def folder(make_spec: MakeSpec, tmp_path: Path) -> Path:
    """An unzipped archive of a tiny model."""
    return build_and_unzip(make_spec(labels=LABELS), tmp_path)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Another `offpath` whose handler cannot be imported, and modules of the user's."""
    handler = tmp_path / "others" / "offpath" / "handler"
    handler.mkdir(parents=True)
    (handler.parent / "__init__.py").touch()
    (handler / "__init__.py").touch()
    for name in ("classifier", "config", "errors", "pipeline"):
        (handler / f"{name}.py").write_text(POISON)
    for name in ("handler", "profiling", "serving", "archive"):
        (tmp_path / "others" / f"{name}.py").write_text(POISON)
    return tmp_path / "others"


@pytest.fixture
def answer_from(loader: subprocess.Popen[str]) -> AnswerFrom:
    """Loads an archive with `path` as PYTHONPATH, after importing `first`; its answer's labels."""

    def answer(folder: Path, *first: str, path: list[Path]) -> set[str]:
        photo = folder.parent / "photo.jpg"
        photo.write_bytes(jpeg(size=(300, 200)))
        loader.stdin.write(json.dumps([str(folder), str(photo), first, list(map(str, path))]))
        loader.stdin.write("\n")
        loader.stdin.flush()
        line = next(line for line in loader.stdout if line.startswith("SAID "))
        said = json.loads(line.removeprefix("SAID "))
        assert "error" not in said, said["error"]
        elsewhere = [f for f in said["ours"] if not f.startswith(f"{folder}{os.sep}")]
        assert said["ours"] and elsewhere == []
        assert sum(said["answer"].values()) == pytest.approx(1.0, abs=1e-4)
        return set(said["answer"])

    return answer


@guarantee(
    "An archive runs its own copy of the handler",
    "handler/classifier_entry.py",
    "            del sys.modules[name]",
    "            pass",
)
@pytest.mark.parametrize(
    "first",
    [
        # TorchServe puts a user's PYTHONPATH before the archive (EnvironmentUtils.java).
        pytest.param([], id="that-comes-first-on-the-path"),
        # As in a process that is more than a worker.
        pytest.param(["offpath.handler"], id="that-was-imported-before"),
    ],
)
def test_own_handler_wins_over_another(
    answer_from: AnswerFrom, folder: Path, others: Path, first: list[str]
) -> None:
    assert answer_from(folder, *first, path=[others, folder]) == set(LABELS)


NEIGHBOURS = {
    "net.py": "from parts.stem import pool\n"
    "import torch\n"
    "class Net(torch.nn.Module):\n"
    "    def __init__(self, head):\n"
    "        super().__init__()\n"
    "        self.head = head\n"
    "    def forward(self, images):\n"
    "        return self.head(pool(images))\n"
    "def make_model():\n"
    "    from layers import Head\n"
    "    return Net(Head(3))\n",
    "layers.py": "import torch\nclass Head(torch.nn.Linear):\n"
    "    def __init__(self, classes):\n        super().__init__(3, classes)\n",
    "parts/__init__.py": "",
    "parts/stem.py": "def pool(images):\n    return images.mean((2, 3))\n",
}


def test_factory_loads_with_the_modules_beside_it(
    answer_from: AnswerFrom, make_spec: MakeSpec, tmp_path: Path
) -> None:
    for name, text in NEIGHBOURS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    model = f"{tmp_path / 'net.py'}:make_model"
    spec = make_spec(labels=LABELS, model=model, weights="random")
    folder = build_and_unzip(spec, tmp_path)
    assert all((folder / name).is_file() for name in NEIGHBOURS)
    assert answer_from(folder, path=[folder]) == set(LABELS)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("name", ["tiny.pt2", "tiny.pt"], ids=["exported", "torchscript"])
def test_a_program_without_a_class_loads_too(
    answer_from: AnswerFrom, make_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    module, file = make_spec().source.module.eval(), tmp_path / name
    if name == "tiny.pt2":
        images, shapes = (torch.zeros(2, 3, 224, 224),), ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(module, images, dynamic_shapes=shapes), file)
    else:
        torch.jit.save(torch.jit.trace(module, torch.zeros(1, 3, 32, 32)), file)
    folder = build_and_unzip(make_spec(labels=LABELS, model=str(file)), tmp_path)
    assert not (folder / "tiny.py").exists()
    assert answer_from(folder, path=[folder]) == set(LABELS)


def test_onnx_archive_loads_too(
    answer_from: AnswerFrom, make_spec: MakeSpec, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from tests.archive.onnx_models import CLASSES, write_onnx

    model = write_onnx(tmp_path / "net.onnx", (3, 3, 224, 224))
    labels = [f"label {number}" for number in range(CLASSES)]
    spec = make_spec(labels=labels, model=str(model), engine="onnxruntime")
    folder = build_and_unzip(replace(spec, checks_answers=True), tmp_path)
    assert answer_from(folder, path=[folder]) == set(labels)


HOOKS = """
from offpath.handler.classifier import OffpathClassifier


class Hooked(OffpathClassifier):
    def initialize(self, context):
        super().initialize(context)
        self.calls = ["initialize"]

    def preprocess(self, requests):
        self.calls.append("preprocess")
        return super().preprocess(requests)

    def inference(self, batch):
        self.calls.append("inference")
        return super().inference(batch)

    def postprocess(self, batch):
        self.calls.append("postprocess")
        return super().postprocess(batch)

    def postprocess_item(self, result):
        return {"calls": self.calls, "best": result.predictions[0].label}
"""
HANDLE = """
    def handle(self, data, context):
        return super().handle(data, context)
"""
# Loads an archive as every server but TorchServe does.
WITHOUT_TORCHSERVE = """
import sys
from pathlib import Path

sys.modules["ts"] = None  # an import of it fails
from offpath.handler.contract import Request
from offpath.serving.service.archived_classifier import load_classifier

classifier = load_classifier(Path(sys.argv[1]))
(reply,) = classifier.classify([Request(Path(sys.argv[2]).read_bytes(), "id")])
print(reply.body.decode())
"""


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param(HOOKS, 0, '"preprocess","inference","postprocess"],"best":', id="hooks-run"),
        pytest.param(HOOKS + HANDLE, 1, "only TorchServe calls Hooked.handle", id="handle"),
        pytest.param(f"import ts\n{HOOKS}", 1, "pip install torchserve", id="needs-torchserve"),
    ],
)
def test_without_torchserve_all_hooks_run_or_the_archive_is_refused_by_name(
    make_spec: MakeSpec, tmp_path: Path, text: str, code: int, said: str
) -> None:
    (tmp_path / "hooked.py").write_text(text)
    handler = HandlerFile(tmp_path / "hooked.py", "Hooked")
    folder = build_and_unzip(replace(make_spec(labels=LABELS), handler=handler), tmp_path)
    (tmp_path / "photo.jpg").write_bytes(jpeg(size=(300, 200)))
    command = [sys.executable, "-c", WITHOUT_TORCHSERVE, folder, tmp_path / "photo.jpg"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
