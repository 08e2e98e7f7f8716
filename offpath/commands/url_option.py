"""Checks addresses and tokens of servers on the command line, and finds the front door meant."""

from __future__ import annotations

from pathlib import Path

import httpx

from offpath.errors import ExpectedError, WrongOption
from offpath.serving.server.management import UNIX
from offpath.serving.servers_here import find_doors, refuse_several

DOOR_HELP = (
    "Any address that the `offpath serve --front` has printed [default: the only one that runs "
    "here and that you can reach]."
)


def find_door(url: str | None) -> Path:
    """Returns the folder of the running front door with this address, or of the only one.

    Raises:
        WrongOption: the address is not valid, or there are several doors and no address.
        ExpectedError: no such door runs.
    """
    if url is not None and not url.startswith(UNIX):
        check_url("--url", url)
    doors = find_doors()
    found = [door for door in doors if url is None or door.answers(url)]
    if not found:
        named = " or ".join(f"--url {door.url}" for door in doors)
        raise ExpectedError(
            f"no `offpath serve --front` runs that you can reach{f' at {url}' if url else ''}; "
            + (f"there is {named}" if named else "start one, or ask as the user who started it")
        )
    refuse_several(found, "`offpath serve --front`")
    return found[0].folder


def check_url(option: str, url: str) -> str:
    """Returns the address unchanged.

    Raises:
        WrongOption: it is not an HTTP address.
    """
    try:
        parsed = httpx.URL(url)
        is_http = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx.InvalidURL:
        is_http = False
    if not is_http:
        raise WrongOption(
            f"{option} {url!r} is not an address; expected http://HOST:PORT or https://HOST:PORT"
        )
    return url


def check_token(token: str | None) -> str | None:
    """Returns the token unchanged.

    Raises:
        WrongOption: an HTTP header cannot hold it.
    """
    if token is not None and not (token.isascii() and token.isprintable()):
        raise WrongOption(f"--token {token!r} is not a token; expected printable ASCII characters")
    return token
