"""A server's own environment: whole or not there, with our torch and its own packages."""

from __future__ import annotations

import importlib.util
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.profiling.servers.environments import Environment


def make_wheel(folder: Path) -> Path:
    """A wheel with a script, and a module that we have in another version."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": "def main(): print('tiny runs')",
        "click.py": "__version__ = 'its own'",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        "Requires-Dist: numpy\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, "tiny-1.0.dist-info/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "tiny-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("OFFPATH_CACHE_DIR", str(folder))
        # Nothing here may need an index.
        patch.setenv("PIP_NO_INDEX", "1")
        yield folder


@pytest.fixture(scope="module")
def tiny(cache: Path, wheel: Path) -> Environment:
    environment = Environment("tiny", (str(wheel),))
    assert environment.find() is None
    environment.ensure()
    return environment


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_environment_shares_our_torch_and_our_code(tiny: Environment) -> None:
    code = "from importlib.util import find_spec as f\nfor m in {}: print(f(m).origin)"
    modules = ["torch", "numpy", "PIL", "offpath"]
    specs = [importlib.util.find_spec(module) for module in modules]
    expected = [spec.origin if spec else None for spec in specs]

    assert run(tiny.find(), "-c", code.format(modules)).splitlines() == expected


def test_what_a_killed_setup_left_is_not_taken_for_whole_and_made_anew(
    cache: Path, wheel: Path
) -> None:
    killed = Environment("killed", (str(wheel), "--no-deps"))
    python = killed.folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert killed.find() is None

    assert run(killed.ensure(), "-c", "print(1)") == "1"
