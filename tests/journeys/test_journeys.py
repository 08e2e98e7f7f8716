"""Journeys of users with commands of the built wheel, which knows nothing of the clone.

One server has all the models of `models.py`. Each answer is compared with that of plain PyTorch and
torchvision.
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

from tests.journeys.conftest import ROOT
from tests.journeys.models import JOURNEYS, ask_torch
from tests.journeys.shell import Shell
from tests.support.eventually import eventually
from tests.support.front import check_addresses

pytestmark = pytest.mark.server
GUIDE = ROOT / "docs" / "your-handler.md"
# Decoded as Pillow does it, so that answers can be held against torchvision's.
EXACT = ("--engine", "eager", "--precision", "fp32", "--set", "decode=exact")
# One photograph to look at is enough for models that are this simple.
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
    common = ("--labels", "classes.txt", "--name", name, *EXACT, *SHORT)
    return list(map(str, ("archive", *common, *options)))


@pytest.fixture(scope="module")
def log(shell: Shell) -> str:
    """The sink of the custom handler's predictions."""
    return f"file://{shell.folder}/log"


@pytest.fixture(scope="module")
def ready(shell: Shell, log: str) -> Iterator[dict[str, Any]]:
    """`offpath serve A.mar B.mar ...` with every model and a custom handler."""
    commands = [
        make_command(name, "--weights", f"{name}.pt", *journey.archive)
        for name, journey in JOURNEYS.items()
    ]
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    (shell.folder / "my_handler.py").write_text(code)
    own = ("--handler", "my_handler.py", "--set", "own={reject_above: 0.0}")
    command = make_command(
        *("defects", "--model", "net.py", "--weights", "net.pt"),
        *(*own, "--prediction-log", log),
        *("--set", "prediction_log={segment_max_age_s: 1}"),
    )
    *all_said, own_said = shell.run_several([*commands, command])
    trial = r"the handler's answer to espresso.jpg: 200 \{.*\}\n"
    assert re.fullmatch(trial, own_said), "nothing else that a stranger must interpret"
    for journey, said in zip(JOURNEYS.values(), all_said):
        assert all(text in said for text in journey.said)
    archives = sorted(f"store/{one.name}" for one in shell.folder.glob("store/*.mar"))
    with shell.serve(*archives, "--grpc-port", 0) as ready:
        yield ready


@pytest.fixture(scope="module")
def photograph(shell: Shell) -> bytes:
    return (shell.folder / "part.jpg").read_bytes()


def assert_as_torch(answer: dict[str, float], name: str, photograph: bytes) -> None:
    expected = ask_torch(name, photograph)
    # A wrong crop, mean or head must show: the classes are not all alike.
    assert max(expected.values()) - min(expected.values()) > 20 * TOLERANCE
    assert len(answer) == 5 and next(iter(answer)) == next(iter(expected))
    same = {label: expected[label] for label in answer}
    assert answer == pytest.approx(same, abs=TOLERANCE)


@pytest.mark.parametrize("name", JOURNEYS)
def test_own_model_answers_as_plain_pytorch(
    shell: Shell, ready: dict[str, Any], photograph: bytes, name: str
) -> None:
    url = ("--url", ready["inference"], "--model", name)
    said = shell.run_json("predict", "part.jpg", *url)
    assert_as_torch(said["labels"], name, photograph)


def test_client_library_beside_a_handler_py(
    shell: Shell, ready: dict[str, Any], photograph: bytes
) -> None:
    said = shell.execute(shell.python, "-c", ASK, ready["inference"], "net")
    assert_as_torch(dict(json.loads(said)), "net", photograph)


def test_own_handler_answers_in_its_own_words_and_in_the_log(
    shell: Shell, ready: dict[str, Any], photograph: bytes, log: str
) -> None:
    url = f"{ready['inference']}/predictions/defects"
    answer = httpx.post(url, content=photograph, headers={"x-line": "7"}).json()
    best = next(iter(ask_torch("net", photograph)))
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
    assert areas >= {*JOURNEYS, *(f"{name}.mar" for name in JOURNEYS), "server"}
    # Every printed address leads to the server and to its metrics.
    check_addresses([ready["inference"], ready["metrics"]])
