"""Checks addresses and tokens of servers that are given on the command line."""

from __future__ import annotations

import httpx

from offpath.handler.errors import WrongOption


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
