"""What users do, as commands, from the built wheel: none of it knows the clone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from offpath.serving.ports import resolve_ports
from tests.journeys.conftest import LABELS, Shell
from tests.support.stock_archive import make_stock

pytestmark = [pytest.mark.server, pytest.mark.slow]
GUIDE = Path(__file__).parents[2] / "docs" / "your-handler.md"
OWN_MODEL = ("--model", "net.py", "--weights", "net.pt", "--labels", "classes.txt")
RESNET = """
from torchvision.models.resnet import Bottleneck, ResNet


class Six(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, [3, 4, 6, 3], num_classes=6)
"""


def test_own_model_with_an_own_handler_and_a_prediction_log(shell: Shell) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    (shell.folder / "my_handler.py").write_text(code)
    log = f"file://{shell.folder}/log"
    options = ("--handler", "my_handler.py", "--set", "own={reject_above: 0.0}")
    shell.run(
        *("archive", *OWN_MODEL, *options, "--engine", "eager", "--name", "defects"),
        *("--prediction-log", log, "--output", "store"),
    )
    with shell.serve("store/defects.mar", "--management-port", 0) as ready:
        (model,) = ready["models"]
        assert model["described"]["engine"] == "eager"
        said = shell.run_json("predict", "part.jpg", "--url", ready["inference"])
        assert said["status"] == 200
        answer = httpx.post(
            f"{ready['inference']}/predictions/defects",
            content=(shell.folder / "part.jpg").read_bytes(),
            headers={"x-line": "7"},
        ).json()
        assert (answer["verdict"], answer["line"]) == ("reject", "7")
        assert answer["defect"] in LABELS
        findings = shell.run_json("check", "--url", ready["management"])
        assert {one["state"] for one in findings} <= {"ok", "lost"}
    shell.run("logs", "ship")
    lines = shell.run("logs", "read", log, "--json").splitlines()
    records = [json.loads(line) for line in lines]
    # The two above: the warm-up's are no predictions that anybody asked for.
    assert [one["extra"] for one in records] == [{"verdict": "reject"}] * 2


def test_stock_archive_converted_beside_itself_on_a_plain_torchserve(
    shell: Shell,
) -> None:
    folder = shell.folder
    labels = {str(index): label for index, label in enumerate(LABELS)}
    old = make_stock(
        folder / "old", folder / "net.py", folder / "net.pt", labels=labels
    )
    shell.run(
        *("archive", "--from", old, "--name", "new", "--output", "store"),
        *("--set", "decode=exact", "--engine", "eager", "--precision", "fp32"),
    )
    shutil.copy(old, folder / "store")
    inference, management, metrics, *grpc = resolve_ports("127.0.0.1", [0] * 5)
    (folder / "mine.properties").write_text(
        f"inference_address=http://127.0.0.1:{inference}\n"
        f"management_address=http://127.0.0.1:{management}\n"
        f"metrics_address=http://127.0.0.1:{metrics}\n"
        f"grpc_inference_port={grpc[0]}\ngrpc_management_port={grpc[1]}\n"
        "disable_token_authorization=true\ndefault_workers_per_model=1\n"
    )
    start = ("-m", "ts.model_server", "--start", "--foreground", "--ncs")
    where = ("--model-store", "store", "--ts-config", "mine.properties")
    models = ("--models", "new.mar", "stock.mar")
    url = f"http://127.0.0.1:{inference}/predictions"
    photo = (folder / "part.jpg").read_bytes()
    with shell.started(shell.python, *start, *where, *models):
        new, stock = (wait_for(f"{url}/{name}", photo) for name in ("new", "stock"))
        findings = shell.run_json("check", "--url", f"http://127.0.0.1:{management}")
    assert new == pytest.approx(stock, abs=0.01) and len(new) == 5
    lost = {one["subject"] for one in findings if one["state"] == "lost"}
    assert {"collector", "our metrics", "handler", "batches"} <= lost
    shell.run("check", "mine.properties", "store/new.mar")


def wait_for(url: str, body: bytes) -> dict[str, float]:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            reply = httpx.post(url, content=body)
            if reply.status_code == 200:
                answer: dict[str, float] = reply.json()
                return answer
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise TimeoutError(url)


def test_what_is_wrong_is_one_line_and_an_exit_code(shell: Shell) -> None:
    (shell.folder / "bad.properties").write_text("batch_size=8\n")
    assert "wrong batch_size" in shell.run("check", "bad.properties", code=1)
    for command in (
        ("archive", "--from", "part.jpg"),
        ("archive", *OWN_MODEL, "--handler", "handler.py"),
        ("serve", "none.mar"),
        ("predict", "part.jpg", "--url", "http://127.0.0.1:9"),
    ):
        done = subprocess.run(
            [shell.python.with_name("offpath"), *command],
            cwd=shell.folder,
            env=shell.env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, command
        assert done.stderr.startswith("offpath: ") and "Traceback" not in done.stderr


def test_own_resnet50_with_six_classes(shell: Shell) -> None:
    (shell.folder / "six.py").write_text(RESNET)
    shell.run(
        *("archive", "--model", "six.py", "--weights", "random"),
        *("--labels", "classes.txt", "--name", "six", "--output", "store"),
    )
    with shell.serve("store") as ready:
        said = shell.run_json("predict", "part.jpg", "--url", ready["inference"])
        assert said["status"] == 200 and set(said["labels"]) <= set(LABELS)
        findings = shell.run_json("check", "--url", ready["management"])
        assert "wrong" not in {one["state"] for one in findings}
