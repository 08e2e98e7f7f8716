"""Addresses of servers on a command line, and the tokens that they ask for."""

from __future__ import annotations

import httpx

from offpath.handler.errors import WrongOption


def check_url(option: str, url: str) -> str:
    """The address as it was given.

    Raises:
        WrongOption: it is none of HTTP.
    """
    try:
        parsed = httpx.URL(url)
        is_http = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx.InvalidURL:
        is_http = False
    if not is_http:
        raise WrongOption(f"{option} {url!r}: expected http://HOST:PORT, or https://")
    return url


def check_token(token: str | None) -> str | None:
    """The token as it was given.

    Raises:
        WrongOption: no header of HTTP can hold it.
    """
    if token is not None and not (token.isascii() and token.isprintable()):
        raise WrongOption(f"--token {token!r}: expected printable ASCII, as keys are")
    return token
