"""TorchServe's own tokens: three keys in a file that Java writes when it starts.

TokenAuthorization.java; they expire after `token_expiry_min` of config.properties, an hour by
default, but for the API key, which renews them.
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
        path: the file, in a folder of the server's own.
        management_url: where keys are renewed.
    """

    path: Path
    management_url: str

    def read(self, kind: str) -> str:
        """The key for `inference`, `management` or `API`.

        Raises:
            OSError, ValueError, KeyError: not there yet, or half written.
        """
        return str(self._content()[kind]["key"])

    @property
    def expires(self) -> str | None:
        """Until when the inference key is good, as TorchServe writes it; None: not said."""
        said = self._content()["inference"].get("expiration time")
        return str(said) if said else None

    @property
    def shell_command(self) -> str:
        """Prints the inference key: a key in a command's history is one less secret."""
        return self._printing("inference")

    @property
    def renewal_curl(self) -> str:
        """A command that makes another inference key, which the file then has."""
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
