"""Errors that the users of commands see. Every layer but the handler may raise them."""

from __future__ import annotations


class ExpectedError(Exception):
    """A failure that the user can fix; the message says what was wrong and what to do."""


class WrongOption(ExpectedError):
    """An option that the user passed is wrong, or a file that the option names."""


class MissingPackage(ExpectedError):
    """A package from one of the distribution's extras is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'torchserve-offpath[{extra}]'")
