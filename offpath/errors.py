"""The one class of errors a user is expected to meet; everything else is a bug."""

from __future__ import annotations


class ExpectedError(Exception):
    """Something the user can put right: the message says what was wrong and what to do.

    The command line prints it without a traceback and exits with 1.
    """
