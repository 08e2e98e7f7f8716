"""Checks that packages which an archive asks for are installed. Nothing is installed for it."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from offpath.errors import WrongOption

# Options of pip that ask for no package; these do: -r, -c, -e.
PLACE = re.compile(r"-[fi] |--(?!requirement|constraint|editable)")


def check_requirements(archive: str, file: Path) -> None:
    """Checks the requirements.txt of an unpacked archive.

    Raises:
        WrongOption: a requirement is not met here, or only pip can tell.
    """
    text = file.read_text("utf-8", errors="replace").replace("\\\n", " ")
    lines = [re.sub(r"(^#|\s#|\s--hash).*", "", line).split() for line in text.splitlines()]
    unmet = [shlex.quote(line) for line in map(" ".join, lines) if line and not is_met(line)]
    if unmet:
        raise WrongOption(
            f"{archive} has requirements that are not met here, and install_py_dep_per_model is "
            f"on; Granian installs nothing, so run: pip install {' '.join(unmet)}"
        )


def is_met(requirement: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    if PLACE.match(requirement):
        return True
    try:
        wanted = Requirement(requirement)
        if wanted.marker is not None and not wanted.marker.evaluate():
            return True
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except (InvalidRequirement, PackageNotFoundError):
        return False
