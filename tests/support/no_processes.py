"""A guard: what a command would start raises instead, so that wrong options are tried in peace."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

# Of Java, nginx, the linker and git, for what they are and know.
QUESTIONS = ("-version", "-v", "-V", "-p")


class Started(BaseException):
    """The options were taken: a server, a child or a load was about to begin."""


def forbid_processes(patch: pytest.MonkeyPatch) -> None:
    """Everything heavy begins with a process; a question to Java or git is none."""
    start = subprocess.Popen.__init__

    def refuse(self: Any, command: Any, *more: Any, **how: Any) -> None:
        if not (command[0] == "git" or command[-1] in QUESTIONS):
            # Popen's __del__ looks for it.
            self.returncode = 0
            raise Started(str(command)[:200])
        start(self, command, *more, **how)

    patch.setattr(subprocess.Popen, "__init__", refuse)
