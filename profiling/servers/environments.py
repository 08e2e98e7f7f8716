"""One Python environment per server under test, installed on demand and kept in the cache.

What all servers share (torch, torchvision, numpy, Pillow, simplejpeg, our own code) is not
installed again: a .pth file puts the folders it was imported from behind the environment's own
packages. So every server runs the same torch, and its own versions of everything else win.

An environment's name carries a hash of what it was made from; a changed pin makes a new one beside
the old. It is made in a staging folder and renamed when it is whole, so an interrupted setup leaves
nothing half-made.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.workload import cache_folder

Progress = Callable[[str], None]

# Import name -> distribution; pinned while an environment is filled, unless its requirements name
# another version: a server's loose requirement would bring a second torch of 5.5 GB.
SHARED = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "PIL": "Pillow",
    "simplejpeg": "simplejpeg",
}
# Our own code, which some servers run inside their model files.
OWN_PACKAGE = "offpath"
PTH_FILE = "offpath_shared.pth"
CONSTRAINTS_FILE = "offpath-constraints.txt"
# Of the pip log, in an error message.
LINES_SHOWN = 8


def environments_folder() -> Path:
    """Where environments are kept: `environments` beside the cached workloads."""
    return cache_folder().parent / "environments"


def find_environment(name: str, requirements: Sequence[str]) -> Path | None:
    """The environment's python when it is set up; None otherwise.

    Args:
        name: the server's name.
        requirements: as in `ensure_environment`; other pins are another environment.
    """
    python = environment_path(name, requirements) / "bin" / "python"
    return python if python.exists() else None


def ensure_environment(
    name: str, requirements: Sequence[str], progress: Progress
) -> Path:
    """Sets the environment up unless that was done; returns its python.

    Args:
        name: the server's name, the first part of the folder's.
        requirements: pip's arguments: pinned requirements, perhaps with `--no-deps` among them.
        progress: called with a line for each step and package.

    Raises:
        ExpectedError: no venv module, or pip failed; its log is named and stays.
    """
    folder = environment_path(name, requirements)
    with exclusive(folder) as lock:
        if find_environment(name, requirements) is None:
            progress(f"{name}: making {folder}")
            # Left by a setup that was killed: the lock says that nobody works on it.
            staging = folder.with_name(f".{folder.name}.staging")
            shutil.rmtree(staging, ignore_errors=True)
            try:
                create(staging, requirements)
                install(name, staging, requirements, lock, progress)
                relocate(staging, folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return folder / "bin" / "python"


def environment_path(name: str, requirements: Sequence[str]) -> Path:
    """The environment's folder: its name, and a hash of all that decides its content."""
    made_from = [
        sys.implementation.cache_tag,
        list(requirements),
        shared_folders(),
        shared_pins(requirements),
    ]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    return environments_folder() / f"{name}-{digest[:12]}"


def log_path(folder: Path) -> Path:
    """pip's output while the environment was filled."""
    return folder.with_name(f"{folder.name}.log")


def shared_folders() -> list[str]:
    """The folders that SHARED and our own code are imported from, each once, in order.

    Raises:
        ExpectedError: one of them is not installed here.
    """
    folders: list[str] = []
    for module in (*SHARED, OWN_PACKAGE):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ExpectedError(
                f"no {module} in {sys.prefix!r}: the servers under test share ours;"
                " pip install 'torchserve-offpath[serve,bench]'"
            )
        folder = str(Path(spec.origin).resolve().parents[1])
        if folder not in folders:
            folders.append(folder)
    return folders


def shared_pins(requirements: Sequence[str]) -> list[str]:
    """The installed versions of SHARED that the requirements do not name, as pip constraints.

    A version that is on no index ("2.14.1+cpu") is fine: pip finds it in place and fetches nothing.
    """
    named = {requirement_name(requirement) for requirement in requirements}
    return [
        f"{distribution}=={importlib.metadata.version(distribution)}"
        for distribution in SHARED.values()
        if distribution.lower() not in named
    ]


def requirement_name(requirement: str) -> str:
    """`numpy` of `numpy==1.26.4`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


@contextmanager
def exclusive(folder: Path) -> Iterator[IO[str]]:
    """Holds the environment's lock: two setups of one server do not meet in its staging folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def create(staging: Path, requirements: Sequence[str]) -> None:
    """Makes the empty environment, with the shared packages and pip in sight."""
    try:
        venv.EnvBuilder(with_pip=not shares_pip(), symlinks=True).create(staging)
    except (ImportError, subprocess.CalledProcessError) as error:
        raise ExpectedError(
            f"{sys.executable!r} cannot make an environment with pip: {error}; on Debian and"
            " Ubuntu: apt install python3-venv"
        ) from error
    # In place before pip runs: what is there already counts as installed.
    pth = site_packages(staging) / PTH_FILE
    pth.write_text("\n".join(shared_folders()) + "\n", encoding="utf-8")
    constraints = "\n".join(shared_pins(requirements)) + "\n"
    (staging / CONSTRAINTS_FILE).write_text(constraints, encoding="utf-8")


def shares_pip() -> bool:
    """Whether our pip is in one of the shared folders: one less to install, 8 s of CPU."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        return False
    return str(Path(spec.origin).resolve().parents[1]) in shared_folders()


def site_packages(environment: Path) -> Path:
    """The environment's own package folder."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def install(
    name: str,
    staging: Path,
    requirements: Sequence[str],
    lock: IO[str],
    progress: Progress,
) -> None:
    """Fills the environment by pip, whose output goes into the log."""
    command = [
        *(str(staging / "bin" / "python"), "-m", "pip", "install"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
        *("-c", str(staging / CONSTRAINTS_FILE), *requirements),
    ]
    log = log_path(environment_path(name, requirements))
    with open(log, "w", encoding="utf-8") as file:
        # pip holds our lock too: killed alone, we leave it filling the staging folder.
        pip = subprocess.Popen(
            command,
            env=pip_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(lock.fileno(),),
        )
        try:
            for line in pip.stdout or ():
                file.write(line)
                if line.startswith(("Collecting ", "Installing ")):
                    progress(f"{name}: {line.strip()}")
        finally:
            # Ctrl-C: pip is not left behind.
            if pip.poll() is None and sys.exc_info()[0] is not None:
                pip.kill()
            pip.wait()
    if pip.returncode:
        last = log.read_text(encoding="utf-8").splitlines()[-LINES_SHOWN:]
        raise ExpectedError(
            f"cannot install server {name!r}: pip ended with {pip.returncode}; its log is"
            f" {str(log)!r}, which ends:\n" + "\n".join(f"  {line}" for line in last)
        )


def pip_environment() -> dict[str, str]:
    """Our environment without what would install elsewhere, or let pip see our own packages."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    return {key: value for key, value in os.environ.items() if key not in hidden}


def relocate(staging: Path, folder: Path) -> None:
    """Gives the finished environment its name, which its scripts have in their first line."""
    for script in (staging / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if str(staging).encode() in text and b"\0" not in text:
            script.write_bytes(
                text.replace(str(staging).encode(), str(folder).encode())
            )
    # Whatever is there has no python, or we would not be here.
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(staging, folder)
