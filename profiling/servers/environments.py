"""One Python environment per server under test, installed on demand and kept in the cache.

What all servers share (torch, torchvision, numpy, Pillow, simplejpeg, our own code) is not
installed again: a .pth file puts the folders it was imported from behind the environment's own
packages. So every server runs the same torch, and its own versions of everything else win.

An environment's name carries a hash of what it was made from; a changed pin makes a new one beside
the old. It counts as there when its last file is: an interrupted setup leaves nothing half-made.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.workplace import cache_folder

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
# Written last.
WHOLE_FILE = "offpath-whole"
# Of the pip log, in an error message.
LINES_SHOWN = 8
# They would install elsewhere, or let pip see our own packages.
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")


@dataclass(frozen=True)
class Environment:
    """What a server from PyPI is run with; several servers may name the same one.

    Attributes:
        name: the first part of its folder's.
        requirements: pip's arguments: pinned requirements, perhaps with `--no-deps` among them.
        size_mb: what they take on disk, for the message that offers to install them.
    """

    name: str
    requirements: Sequence[str]
    size_mb: int = 0

    @property
    def folder(self) -> Path:
        """Its folder in the cache: the name, and a hash of all that decides the content."""
        made_from = [
            sys.implementation.cache_tag,
            list(self.requirements),
            shared_folders(),
            shared_pins(self.requirements),
        ]
        digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        return environments_folder() / f"{self.name}-{digest[:12]}"

    @property
    def packages(self) -> Path:
        """Its own package folder."""
        return site_packages(self.folder)

    @property
    def log(self) -> Path:
        """pip's output while it was filled."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def find(self) -> Path | None:
        """Its python when it is set up; None otherwise."""
        folder = self.folder
        return folder / "bin" / "python" if (folder / WHOLE_FILE).exists() else None

    def ensure(self, progress: Progress) -> Path:
        """Sets it up unless that was done; returns its python.

        Args:
            progress: called with a line for each step and package.

        Raises:
            ExpectedError: no venv module, or pip failed; its log is named and stays.
        """
        folder = self.folder
        with exclusive(folder) as lock:
            if self.find() is None:
                progress(f"{self.name}: making {folder}")
                # Left by a setup that was killed: the lock says that nobody works on it.
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    create(folder, self.requirements)
                    self._install(folder, lock, progress)
                    (folder / WHOLE_FILE).touch()
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
        return folder / "bin" / "python"

    def _install(self, folder: Path, lock: IO[str], progress: Progress) -> None:
        """Fills it by pip, whose output goes into the log."""
        command = [
            *(str(folder / "bin" / "python"), "-m", "pip", "install"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
            *("-c", str(folder / CONSTRAINTS_FILE), *self.requirements),
        ]
        environ = {k: v for k, v in os.environ.items() if k not in HIDDEN_VARIABLES}
        log = self.log
        with open(log, "w", encoding="utf-8") as file:
            # pip holds our lock too: killed alone, we leave it filling the folder.
            pip = subprocess.Popen(
                command,
                env=environ,
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
                        progress(f"{self.name}: {line.strip()}")
            except BaseException:
                # Ctrl-C: pip is not left behind.
                pip.kill()
                raise
            finally:
                pip.wait()
        if pip.returncode:
            last = log.read_text(encoding="utf-8").splitlines()[-LINES_SHOWN:]
            raise ExpectedError(
                f"cannot install server {self.name!r}: pip ended with {pip.returncode}; its log is"
                f" {str(log)!r}, which ends:\n"
                + "\n".join(f"  {line}" for line in last)
            )


def environments_folder() -> Path:
    """Where environments are kept: `environments` beside the cached workloads."""
    return cache_folder() / "environments"


def shared_folders() -> list[str]:
    """The folders that SHARED and our own code are imported from, each once, in order.

    Raises:
        ExpectedError: one of them is not installed here.
    """
    found = {module: package_folder(module) for module in (*SHARED, OWN_PACKAGE)}
    for module, folder in found.items():
        if folder is None:
            raise ExpectedError(
                f"no {module} in {sys.prefix!r}: the servers under test share ours;"
                " pip install 'torchserve-offpath[serve,bench]'"
            )
    return list(dict.fromkeys(str(folder) for folder in found.values()))


def package_folder(module: str) -> Path | None:
    """The folder that a package is imported from; None where it is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parents[1]


def shared_pins(requirements: Sequence[str]) -> list[str]:
    """The installed versions of SHARED that the requirements do not name, as pip constraints.

    A version that is on no index ("2.14.1+cpu") is fine: pip finds it in place and fetches nothing.
    """
    # `numpy` of `numpy==1.26.4`
    named = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in requirements}
    return [
        f"{distribution}=={importlib.metadata.version(distribution)}"
        for distribution in SHARED.values()
        if distribution.lower() not in named
    ]


@contextmanager
def exclusive(folder: Path) -> Iterator[IO[str]]:
    """Holds the environment's lock: two setups of one server do not meet in its folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def create(folder: Path, requirements: Sequence[str]) -> None:
    """Makes the empty environment, with the shared packages and pip in sight."""
    pip = package_folder("pip")
    # One less to install where ours is shared: 8 s of CPU.
    with_pip = pip is None or str(pip) not in shared_folders()
    try:
        venv.EnvBuilder(with_pip=with_pip, symlinks=True).create(folder)
    except (ImportError, subprocess.CalledProcessError) as error:
        raise ExpectedError(
            f"{sys.executable!r} cannot make an environment with pip: {error}; on Debian and"
            " Ubuntu: apt install python3-venv"
        ) from error
    # In place before pip runs: what is there already counts as installed.
    shared = "\n".join(shared_folders()) + "\n"
    (site_packages(folder) / PTH_FILE).write_text(shared, encoding="utf-8")
    constraints = "\n".join(shared_pins(requirements)) + "\n"
    (folder / CONSTRAINTS_FILE).write_text(constraints, encoding="utf-8")


def site_packages(environment: Path) -> Path:
    """An environment's own package folder."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"
