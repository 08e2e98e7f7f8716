"""TorchServe's token authorization: three keys in a file that Java writes when it starts.

The keys for inference and management expire after `token_expiry_min` of config.properties, one hour
by default. The API key does not expire; it renews the others (TokenAuthorization.java).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.serving.torchserve.management import UNIX

PROGRAM = 'import json; print(json.load(open({path!r}))["{kind}"]["key"])'


@dataclass(frozen=True)
class KeyFile:
    """The keys of one running server.

    Attributes:
        path: the file, in the server's run folder.
        management_url: base URL of the API that renews keys.
    """

    path: Path
    management_url: str

    def read(self, kind: str) -> str:
        """Returns the key for `inference`, `management` or `API`.

        Raises:
            OSError, ValueError, KeyError: the file is not written yet, or half written.
        """
        return str(self._content()[kind]["key"])

    @property
    def expires(self) -> str | None:
        """Expiration time of the inference key, as TorchServe writes it; None if there is none."""
        time = self._content()["inference"].get("expiration time")
        return str(time) if time else None

    @property
    def shell_command(self) -> str:
        """A command that prints the inference key, so that the key stays out of shell histories."""
        return self._printing("inference")

    @property
    def renewal_curl(self) -> str:
        """A command that makes a new inference key and writes it to the file."""
        key = f"Authorization: Bearer $({self._printing('API')})"
        socket = self.management_url.removeprefix(UNIX)
        where = (
            f'"{self.management_url}'
            if socket == self.management_url
            else f'--unix-socket {shlex.quote(socket)} "http://localhost'
        )
        return f'curl -H "{key}" {where}/token?type=inference"'

    def _printing(self, kind: str) -> str:
        program = PROGRAM.format(path=str(self.path), kind=kind)
        return f"python3 -c {shlex.quote(program)}"

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return content
