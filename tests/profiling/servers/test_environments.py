"""A server's own environment: whole or not there, with our torch and its own packages."""

from __future__ import annotations

import importlib.util
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.servers.environments import (
    ensure_environment,
    environment_path,
    environments_folder,
    find_environment,
    log_path,
    shared_pins,
)

NAME = "tiny"


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
def python(cache: Path, wheel: Path) -> Path:
    return ensure_environment(NAME, [str(wheel)], lambda line: None)


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_environment_lies_in_the_cache_under_its_name_and_a_hash(
    cache: Path, python: Path, wheel: Path
) -> None:
    folder = environment_path(NAME, [str(wheel)])

    assert python == folder / "bin" / "python"
    assert folder.parent == cache / "environments"
    assert folder.name.startswith("tiny-")


def test_environment_shares_our_torch_and_our_code(python: Path) -> None:
    code = "from importlib.util import find_spec as f\nfor m in {}: print(f(m).origin)"
    modules = ["torch", "numpy", "PIL", "handler"]
    specs = [importlib.util.find_spec(module) for module in modules]
    expected = [spec.origin if spec else None for spec in specs]

    assert run(python, "-c", code.format(modules)).splitlines() == expected


def test_what_the_environment_has_itself_wins_over_ours(python: Path) -> None:
    assert (
        run(python, "-c", "import click; print(click.__version__)").split()[0] == "its"
    )


def test_scripts_run_from_where_the_environment_ended_up(python: Path) -> None:
    assert run(python.parent / "tiny") == "tiny runs"


def test_second_setup_finds_the_first_one_and_does_nothing(
    python: Path, wheel: Path
) -> None:
    lines: list[str] = []

    assert ensure_environment(NAME, [str(wheel)], lines.append) == python
    assert lines == []


def test_other_pins_are_another_environment(python: Path) -> None:
    assert find_environment(NAME, ["tiny==2.0"]) is None
    assert environment_path(NAME, ["tiny==2.0"]) != python.parents[1]


def test_shared_versions_are_pinned_unless_the_server_names_its_own() -> None:
    names = [pin.split("==")[0] for pin in shared_pins(["NumPy==1.26.4", "tiny==1"])]

    assert names == ["torch", "torchvision", "Pillow", "simplejpeg"]


def leftovers(folder: Path) -> list[str]:
    """What is there of an environment, without lock and log."""
    return [
        path.name
        for path in environments_folder().glob(f"*{folder.name}*")
        if path.suffix not in (".lock", ".log")
    ]


def test_failed_installation_names_its_log_and_leaves_nothing(cache: Path) -> None:
    requirements = ["tiny-that-nobody-wrote==1.0"]
    folder = environment_path(NAME, requirements)

    with pytest.raises(ExpectedError, match="tiny-that-nobody-wrote") as caught:
        ensure_environment(NAME, requirements, lambda line: None)

    assert str(log_path(folder)) in str(caught.value)
    assert "tiny-that-nobody-wrote" in log_path(folder).read_text()
    assert leftovers(folder) == []


def test_interrupted_setup_leaves_nothing_half_made(cache: Path, wheel: Path) -> None:
    requirements = ["--no-deps", str(wheel)]
    folder = environment_path(NAME, requirements)
    # What a setup that was killed has left.
    stale = folder.with_name(f".{folder.name}.staging")
    (stale / "bin").mkdir(parents=True)

    def interrupt(line: str) -> None:
        if "Installing" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_environment(NAME, requirements, interrupt)

    assert leftovers(folder) == []
    assert find_environment(NAME, requirements) is None
