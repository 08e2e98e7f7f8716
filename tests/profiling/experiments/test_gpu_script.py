"""scripts/gpu.sh: the dry run, continuing, its tables, and its stand-in for a T4."""

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
SCRIPT = ROOT / "scripts/gpu.sh"
# What the programs of a user's shell are found by.
KEPT = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}


def run_script(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    found = {"PATH": "/usr/local/bin:/usr/bin:/bin", **env}
    return subprocess.run([SCRIPT, *options], env=found, capture_output=True, text=True)


def test_dry_run_names_each_result_once_and_its_minutes() -> None:
    done = run_script("--dry-run")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    files = [line.split()[2].rstrip(",") for line in lines]
    assert {"tests.xml", "servers-55k.json", "t4.json", "memory.json"} < set(files)
    assert len(set(files)) == len(files)
    minutes = [int(line.partition("at most ")[2].split()[0]) for line in lines]
    assert max(minutes) < 10
    assert {line.split()[1].rstrip(":") for line in lines} == set("123456")


def test_one_step_is_chosen_and_a_wrong_one_is_refused() -> None:
    lines = run_script("--dry-run", "--step", "5").stderr.splitlines()
    assert lines and all(line.startswith("step 5") for line in lines)
    for wrong in (("--step", "7"), ("--step",), ("--nosuch",)):
        refused = run_script(*wrong)
        assert refused.returncode == 2 and wrong[-1] in refused.stderr
    assert "--dry-run" in run_script("--help").stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script in a repository whose programs only write their results, or fail."""
    (tmp_path / "scripts").mkdir()
    for name in ("gpu.sh", "bootstrap.sh"):
        (tmp_path / "scripts" / name).write_bytes((SCRIPT.parent / name).read_bytes())
    (tmp_path / "scripts/gpu.sh").chmod(0o755)
    programs = tmp_path / "venv/bin"
    programs.mkdir(parents=True)
    program = f"""#!/bin/sh
echo "$OFFPATH_RESNET50_REPEATS|$*" >>{tmp_path}/calls
case $* in *waiting*) exit "$(cat {tmp_path}/code)" ;; esac
for last in "$@"; do :; done
case $last in */partial-*) echo done >"$last" ;; esac
"""
    for name in ("offpath", "pytest", "python", "taskset"):
        text = '#!/bin/sh\nshift 2\nexec "$@"\n' if name == "taskset" else program
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "setup.cfg").touch()
    stamp = subprocess.run(
        ["cksum"], stdin=(tmp_path / "setup.cfg").open(), capture_output=True, text=True
    ).stdout.replace(" ", "")
    (tmp_path / "venv/.offpath-serve,bench,dev").write_text(stamp.strip())
    return tmp_path


def run_checkout(checkout: Path, waiting_code: int) -> tuple[int, list[str]]:
    """Returns the exit code, and the programs' calls in this run."""
    (checkout / "code").write_text(str(waiting_code))
    (checkout / "calls").unlink(missing_ok=True)
    path = f"{checkout}/venv/bin:/usr/bin:/bin"
    done = subprocess.run(
        [checkout / "scripts/gpu.sh"],
        env={"PATH": path, "OFFPATH_VENV": f"{checkout}/venv"},
        capture_output=True,
        text=True,
    )
    return done.returncode, (checkout / "calls").read_text().splitlines()


def test_stopped_run_continues_where_it_stopped(checkout: Path) -> None:
    code, _ = run_checkout(checkout, waiting_code=130)
    results = checkout / "profiling/results/gpu"
    assert code == 130
    assert (results / "batches.json").exists()
    assert not (results / "waiting.json").exists()
    # 1 is a result too: a server failed, and the others were measured.
    code, calls = run_checkout(checkout, waiting_code=1)
    assert code == 1 and (results / "memory.json").exists()
    assert not any("partial-batches" in call for call in calls)
    assert not list(results.glob("partial-*"))
    slow = [call for call in calls if "t4.json" in call]
    assert [call.partition("|")[0] for call in slow if "compare" in call] == ["done"]
    # The fake program prints no table.
    shown = (results / "tables.md").read_text()
    assert shown.count("# ") == len(list(results.glob("*.json"))) > 10


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
    done = run_script("--try", "--step", "6", OFFPATH_VENV=sys.prefix, **KEPT)
    assert done.returncode == 0, done.stderr
    tables = (results / "tables.md").read_text().partition("photos-55k: requests per second")[2]
    row, *_ = (row for row in tables.splitlines() if "| offpath, GPU decoding |" in row)
    assert float(row.split("|")[2].replace(",", "")) > 0
