"""The file of bearer tokens: one a line, several so that one can be replaced; `#` comments.

A token is found in nginx by its patterns one after the other: dozens are fine, thousands are a job
for an identity provider.
"""

from __future__ import annotations

import re
from pathlib import Path

from offpath.handler.errors import WrongOption

# RFC 6750, section 2.1; a short one can be guessed.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


def read_tokens(path: Path) -> list[str]:
    """Reads the tokens.

    Raises:
        WrongOption: the file cannot be read, has none, or a line is no token; the line is named
            by its number, never shown.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongOption(f"cannot read tokens from {path}: {error}") from error
    tokens = []
    for number, line in enumerate(lines, start=1):
        token = line.partition("#")[0].strip()
        if not token:
            continue
        if TOKEN.fullmatch(token) is None:
            raise WrongOption(
                f"{path}, line {number} is no token: 16 to 512 letters, digits and ._~+/-, "
                "such as `openssl rand -hex 32` prints"
            )
        tokens.append(token)
    if not tokens:
        raise WrongOption(f"no token in {path}; without one nobody would be let in")
    return tokens


def format_map(tokens: list[str]) -> str:
    """Lines of nginx's map from the Authorization header; `~` makes letters' case count."""
    return "".join(f'"~^[Bb]earer {re.escape(token)}$" 1;\n' for token in tokens)
