"""Wrong inputs of every command: the table wrong_input.yaml, and the files that it names."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from offpath.archive.mar_file import OUR_HANDLER
from tests.profiling.runs import make_compare
from tests.support.hostile_archives import ALIASES, pack
from tests.support.images import jpeg

INPUTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


@dataclass(frozen=True)
class Case:
    """Arguments of a command with the exit code and a part of the message that must come."""

    command: str
    arguments: str
    code: int
    says: str = ""


def list_cases() -> Iterator[Case]:
    """Yields the cases of the table."""
    for command, section in INPUTS.items():
        for key, code in (("refused", 2), ("fails", 1)):
            for one in section.get(key, []):
                arguments, says = next(iter(one.items())) if isinstance(one, dict) else (one, "")
                yield Case(command, arguments, code, says)


def write_files(folder: Path) -> None:
    """Writes the files that the table names; `out`, `new.yaml` and `none` do not exist."""
    for name in ("folder", "empty", "store", "two", "log", "damaged", "images"):
        (folder / name).mkdir()
    (folder / "folder" / "a.txt").write_text("a")
    (folder / "damaged" / "a.jpg").write_bytes(b"no image")
    for name in ("text.txt", "text.mar", "cert.pem", "text.json"):
        (folder / name).write_text("one\ntwo: [\n")
    (folder / "empty.txt").write_text("")
    (folder / "ids.txt").write_text("a\n")
    (folder / "list.jsonl").write_text('{"status": 200}\n')
    (folder / "list.yaml").write_text("[1, 2]\n")
    (folder / "aliases.yaml").write_text(ALIASES)
    (folder / "twice.yaml").write_text("batchSize: 8\nbatchSize: 1\n")
    (folder / "mine.yaml").write_text("handler: {topk: 5}")
    (folder / "bad.properties").write_text("no equals sign\n")
    (folder / "tokens.properties").write_text("disable_token_authorization=false\n")
    (folder / "batch.properties").write_text("batch_size=8\n")
    (folder / "https.properties").write_text("inference_address=https://127.0.0.1:8080\n")
    (folder / "queue.properties").write_text("job_queue_size=many\n")
    (folder / "zero.properties").write_text("max_request_size=0\n")
    (folder / "snapshot.properties").write_text("model_snapshot={\n")
    (folder / "binary.properties").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("photo.jpg", "images/a.jpg"):
        (folder / name).write_bytes(jpeg(size=(64, 64)))
    net = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n"
    (folder / "net.py").write_text(f"{net}        super().__init__(3, 2)\n")
    (folder / "empty.py").touch()
    (folder / "broken.py").write_text("class Mine\n")
    saved = io.BytesIO()
    torch.save({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, saved)
    (folder / "half-zip.pt").write_bytes(saved.getvalue()[: len(saved.getvalue()) * 2 // 3])
    make_compare().save(folder / "result.json")
    write_archive(folder / "good.mar", "offpath/handler/classifier_entry.py")
    write_archive(folder / "stock.mar", "image_classifier")
    whole = (folder / "good.mar").read_bytes()
    (folder / "store" / "good.mar").write_bytes(whole)
    entry = "offpath/handler/classifier_entry.py"
    write_archive(folder / "ours.mar", entry, configFile="model-config.yaml")
    with zipfile.ZipFile(folder / "ours.mar", "a") as archive:
        archive.writestr(OUR_HANDLER, "")
    (folder / "two" / "a.mar").write_bytes(whole)
    second = {"modelName": "good", "modelVersion": "2.0"}
    write_archive(folder / "two" / "b.mar", entry, **second)


def write_archive(path: Path, handler: str, **files: str) -> None:
    """Writes an archive with a manifest and a configuration, and nothing that runs."""
    model = {"modelName": path.stem, "modelVersion": "1.0", "handler": handler, **files}
    pack(path, {"model": model}, {"model-config.yaml": b"batchSize: 8\nhandler: {}\n"})
