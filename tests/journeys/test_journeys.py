"""Journeys of users with commands of the built wheel, which knows nothing of the clone.

One server has the model of `models.py`, alone and with a handler. Each answer is compared with that
of plain PyTorch and torchvision.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journeys.conftest import ROOT, Shell
from tests.journeys.models import ask_torch
from tests.support.eventually import eventually
from tests.support.front import check_addresses

pytestmark = pytest.mark.server
GUIDE = ROOT / "docs" / "your-handler.md"
# Decoded as Pillow does it, so that answers can be held against torchvision's.
EXACT = ("--engine", "eager", "--precision", "fp32", "--set", "decode=exact")
# One photograph to look at is enough for a model that is this simple.
SHORT = ("--calibrate", "photographs", "--workers", 1, "--output", "store")
TOLERANCE = 0.01
PACKAGES = ("handler", "archive", "serving", "profiling")
WHERE = """
import sys
from pathlib import Path
import offpath, offpath.handler
from offpath.serving.server.properties import find_config
print(offpath.__file__, offpath.handler.__file__, find_config(), sep="\\n")
print(*(one for one in sys.path if (Path(one) / "offpath").exists()), sep="\\n")
"""
ASK = """
import json, sys
from offpath.client import Client
with Client(sys.argv[1], model=sys.argv[2]) as client:
    print(json.dumps(client.predict("part.jpg").labels))
assert "torch" not in sys.modules
"""


def test_wheel_holds_one_package_and_every_file_of_its_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("torchserve_offpath-")} == {"offpath"}
    files = {
        f"offpath/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "results" not in path.parts
    }
    assert len(files) > 100
    assert files - names == set()


def test_nothing_comes_from_the_clone(shell: Shell) -> None:
    found = shell.execute(shell.python, "-c", WHERE).splitlines()
    environment = str(shell.python.parents[1])
    # The package, a folder of it, the settings, and where Python finds them: nowhere else.
    assert len(found) == 4
    assert all(path.startswith(environment) for path in found), found
    assert shell.run("--version").startswith("offpath, version")


def make_command(name: str, *options: object) -> list[str]:
    """The words of an `offpath archive`."""
    model = ("--model", "net.py", "--weights", "net.pt", "--labels", "classes.txt")
    return list(map(str, ("archive", *model, "--name", name, *EXACT, *SHORT, *options)))


@pytest.fixture(scope="module")
def log(shell: Shell) -> str:
    """The sink of the custom handler's predictions."""
    return f"file://{shell.folder}/log"


@pytest.fixture(scope="module")
def ready(shell: Shell, log: str) -> Iterator[dict[str, Any]]:
    """`offpath serve A.mar B.mar` with the model, and with a custom handler."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    (shell.folder / "my_handler.py").write_text(code)
    own = ("--handler", "my_handler.py", "--set", "own={reject_above: 0.0}")
    log_options = ("--prediction-log", log, "--set", "prediction_log={segment_max_age_s: 1}")
    commands = [make_command("net"), make_command("defects", *own, *log_options)]
    _, said = shell.run_several(commands)
    trial = r"the handler's answer to espresso.jpg: 200 \{.*\}\n"
    assert re.fullmatch(trial, said), "nothing else that a stranger must interpret"
    archives = sorted(f"store/{one.name}" for one in shell.folder.glob("store/*.mar"))
    with shell.serve(*archives, "--grpc-port", 0) as ready:
        yield ready


@pytest.fixture(scope="module")
def photograph(shell: Shell) -> bytes:
    return (shell.folder / "part.jpg").read_bytes()


def assert_as_torch(answer: dict[str, float], photograph: bytes) -> None:
    expected = ask_torch(photograph)
    # A wrong crop, mean or head must show: the classes are not all alike.
    assert max(expected.values()) - min(expected.values()) > 20 * TOLERANCE
    assert len(answer) == 5 and next(iter(answer)) == next(iter(expected))
    same = {label: expected[label] for label in answer}
    assert answer == pytest.approx(same, abs=TOLERANCE)


def test_own_model_answers_as_plain_pytorch(
    shell: Shell, ready: dict[str, Any], photograph: bytes
) -> None:
    said = shell.run_json("predict", "part.jpg", "--url", ready["inference"], "--model", "net")
    assert_as_torch(said["labels"], photograph)


def test_client_library_beside_a_handler_py(
    shell: Shell, ready: dict[str, Any], photograph: bytes
) -> None:
    said = shell.execute(shell.python, "-c", ASK, ready["inference"], "net")
    assert_as_torch(dict(json.loads(said)), photograph)


def test_own_handler_answers_in_its_own_words_and_in_the_log(
    shell: Shell, ready: dict[str, Any], photograph: bytes, log: str
) -> None:
    url = f"{ready['inference']}/predictions/defects"
    answer = httpx.post(url, content=photograph, headers={"x-line": "7"}).json()
    best = next(iter(ask_torch(photograph)))
    assert answer == {"verdict": "reject", "defect": best, "line": "7"}
    lines = eventually(lambda: read_log(shell, log))
    # The warm-up's are no predictions that anybody asked for.
    (record,) = map(json.loads, lines)
    assert record["extra"] == {"verdict": "reject"}
    assert record["predictions"][0]["label"] == best


def read_log(shell: Shell, log: str) -> list[str]:
    if not any((shell.folder / "log").glob("dt=*/*/*.jsonl*")):
        return []
    return shell.run("logs", "read", log, "--json").splitlines()


def test_check_finds_nothing_wrong_in_any_archive_nor_in_the_server(
    shell: Shell, ready: dict[str, Any]
) -> None:
    archives = [f"store/{one.name}" for one in shell.folder.glob("store/*.mar")]
    findings = shell.run_json("check", *archives, "--url", ready["management"])
    assert "wrong" not in {one["state"] for one in findings}
    areas = {one["area"].partition(" ")[0] for one in findings}
    assert areas >= {"net", "net.mar", "defects.mar", "server"}
    # Every printed address leads to the server and to its metrics.
    check_addresses([ready["inference"], ready["metrics"]])
