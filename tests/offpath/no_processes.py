"""Lets a command check its options, and raises where it would start a process."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

# Options that ask Java, nginx or the linker for a version.
QUESTIONS = ("-version", "-v", "-V", "-p")


class Started(BaseException):
    """The options were accepted: a server, a child process or a load was about to start."""


def forbid_processes(patch: pytest.MonkeyPatch) -> None:
    """Makes every new process raise Started, apart from git and questions for a version."""
    start = subprocess.Popen.__init__

    def refuse(self: Any, command: Any, *more: Any, **how: Any) -> None:
        if not (command[0] == "git" or command[-1] in QUESTIONS):
            # Popen's __del__ looks for it.
            self.returncode = 0
            raise Started(str(command)[:200])
        start(self, command, *more, **how)

    patch.setattr(subprocess.Popen, "__init__", refuse)
