from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a process of its own: the thresholds hold for the rest of it.
PROGRAM = """
import ctypes
from offpath.handler.process.worker_setup import keep_freed_memory

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

if not keep_freed_memory():
    print("no mallopt")
    raise SystemExit
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resident_mb()
block = ctypes.c_void_p(libc.malloc(200_000_000))
ctypes.memset(block, 1, 200_000_000)
libc.free(block)
print(resident_mb() - before > 190)
"""


def test_freed_memory_is_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() in ("True", "no mallopt"), done.stderr
