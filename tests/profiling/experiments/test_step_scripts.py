"""scripts/gpu.sh and scripts/evidence.sh: the dry run, a trial, and the stand-in for a T4."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from offpath.profiling.experiments import t4_stand_in

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "scripts"
# What the programs of a user's shell are found by.
KEPT = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}


def run_script(script: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    found = {"PATH": "/usr/local/bin:/usr/bin:/bin", **env}
    return subprocess.run([SCRIPTS / script, *options], env=found, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("script", "some"),
    [
        ("gpu.sh", {"tests.xml", "servers-55k.json", "t4.json", "memory.json"}),
        ("evidence.sh", {"door-55k.json", "clients.json", "kills-granian.txt", "log.txt"}),
    ],
)
def test_dry_run_names_each_result_once_and_its_minutes(script: str, some: set[str]) -> None:
    done = run_script(script, "--dry-run")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    files = [line.split()[2].rstrip(",") for line in lines]
    assert some < set(files)
    assert len(set(files)) == len(files)
    minutes = [int(line.partition("at most ")[2].split()[0]) for line in lines]
    assert max(minutes) < 10
    assert {line.split()[1].rstrip(":") for line in lines} == set("123456")


def test_one_step_is_chosen_and_a_wrong_one_is_refused() -> None:
    lines = run_script("gpu.sh", "--dry-run", "--step", "5").stderr.splitlines()
    assert lines and all(line.startswith("step 5") for line in lines)
    for wrong in (("--step", "7"), ("--step",), ("--nosuch",)):
        refused = run_script("gpu.sh", *wrong)
        assert refused.returncode == 2 and wrong[-1] in refused.stderr
    assert "--dry-run" in run_script("gpu.sh", "--help").stdout


def test_repeats_slow_a_device_down_to_a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t4_stand_in, "BATCHES", 3)
    monkeypatch.setattr(t4_stand_in, "T4_RATE", 1)
    assert t4_stand_in.count_repeats("near-free", "cpu") > 1
    monkeypatch.setattr(t4_stand_in, "T4_RATE", 10**9)
    assert t4_stand_in.count_repeats("near-free", "cpu") == 1


def test_photographs_for_the_t4_are_progressive(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    Image.effect_noise((64, 48), 50).convert("RGB").save(source / "a.jpg")
    t4_stand_in.make_progressive(tmp_path / "made", str(source))
    with Image.open(tmp_path / "made/a.jpg") as image:
        assert image.info.get("progressive") and image.size == (64, 48)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(600)
def test_try_measures_real_servers_on_any_machine() -> None:
    if not Path(sys.prefix, ".offpath-serve,bench,dev").exists():
        pytest.skip("this environment was not made by scripts/test.sh")
    results = ROOT / "build/gpu-try"
    shutil.rmtree(results, ignore_errors=True)
    done = run_script("gpu.sh", "--try", "--step", "6", OFFPATH_VENV=sys.prefix, **KEPT)
    assert done.returncode == 0, done.stderr
    tables = (results / "tables.md").read_text().partition("photos-55k: requests per second")[2]
    row, *_ = (row for row in tables.splitlines() if "| offpath, GPU decoding |" in row)
    assert float(row.split("|")[2].replace(",", "")) > 0
