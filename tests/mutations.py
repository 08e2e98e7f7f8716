"""Breaks the code on purpose, one promise at a time, and expects a red test each time.

    python -m tests.mutations                    all, one after the other
    python -m tests.mutations test_deadline      those whose id, promise or file has this text
    python -m tests.mutations --list

Each decorator `@guarantee` of a test that names a file makes this change in a copy of the checkout
and runs the test. If the test stays green, it does not hold the promise, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.guarantees import ROOT, Guarantee, list_guarantees

FAILED = re.compile(r"^(?:FAILED|ERROR) (.*)", re.MULTILINE)


def list_failures(mutation: Guarantee) -> list[str]:
    """Runs the test in a changed copy of the checkout; returns the red cases and why."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / ROOT.name
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        file = copy / mutation.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise SystemExit(
                f"{mutation.test}: {mutation.file} does not have {mutation.old!r} once"
            )
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        # Before the installed package, which is the unchanged checkout.
        # On a busy machine, a longer wait than 30 s may be needed to be red for the right reason.
        environment = {"OFFPATH_TEST_WAIT_S": "30", **os.environ, "PYTHONPATH": str(copy)}
        environment["COLUMNS"] = "200"  # room for the reason beside the test's name
        # A file, because a process that is left behind would keep a pipe open.
        log = Path(folder) / "log"
        with open(log, "wb") as out:
            code = subprocess.call(
                [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", mutation.test],
                cwd=copy,
                env=environment,
                stdout=out,
            )
        end_processes_below(copy)
        printed = log.read_text(encoding="utf-8", errors="replace")
        if code not in (0, 1):
            raise SystemExit(f"{mutation.test}: pytest ended with {code}\n{printed}")
        return FAILED.findall(printed)


def end_processes_below(folder: Path) -> None:
    """Kills what a mutation has left behind."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("PYTHONPATH", ""):
                process.kill()


def main() -> None:
    """Prints the red cases of each test, and the seconds that it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("texts", nargs="*", help="what a test's id, promise or file contains")
    parser.add_argument("--list", action="store_true", help="print tests and files, run nothing")
    options = parser.parse_args()
    chosen = [
        mutation
        for mutation in list_guarantees()
        if mutation.file
        and all(
            text in f"{mutation.test} {mutation.promise} {mutation.file}" for text in options.texts
        )
    ]
    if not chosen:
        parser.error(f"no test with a change has all of {options.texts}; --list shows all")
    green = 0
    for mutation in chosen:
        if options.list:
            print(f"{mutation.test}: {mutation.file}")
            continue
        began_s = time.monotonic()
        red = list_failures(mutation)
        green += not red
        result = f"red: {red}" if red else "GREEN, so the test does not hold its promise"
        print(f"{mutation.test}: {result}, {time.monotonic() - began_s:.0f} s", flush=True)
    raise SystemExit(green > 0)


if __name__ == "__main__":
    main()
