from __future__ import annotations

import os
import subprocess

from offpath.serving.process.processes import end_family, find_family
from tests.support.eventually import eventually


def start_session(script: str, members: int) -> subprocess.Popen[bytes]:
    """Starts a shell that leads its own session, and waits for its children."""
    leader = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    eventually(lambda: len(find_family(leader.pid)) >= members)
    return leader


def test_other_sessions_are_left_alone() -> None:
    bystander = start_session("sleep 600 & wait", members=2)
    leader = start_session("sleep 600 & wait", members=2)
    try:
        end_family(leader.pid, timeout_s=0.5)
        assert len(find_family(bystander.pid)) == 2
        assert os.getpid() not in [p.pid for p in find_family(leader.pid)]
    finally:
        end_family(bystander.pid, timeout_s=0.5)
        bystander.wait()
        leader.wait()
