"""Breaks the code on purpose, one guarantee at a time, and expects a red test each time.

    python -m tests.mutations               all, one after the other
    python -m tests.mutations skipped-append --list

Each mutation changes one line in a copy of the checkout and runs the tests that claim the
guarantee, until one is red. If all stay green, no test holds the guarantee, and the exit code is 1.
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
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One line of the product, what to make of it, and the tests that must notice.

    Attributes:
        name: what goes wrong.
        file: path of the changed file.
        old: text that stands in the file once.
        new: its replacement.
        tests: arguments of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LOG = "tests/handler/prediction_log"
GRANIAN = "tests/serving/granian/test_granian.py"
DOOR = "tests/serving/front/test_door_lifecycle.py"
MUTATIONS = (
    Mutation(
        "skipped-append",
        "handler/prediction_log/spool.py",
        "        segment.append(data, records, self._is_synced)",
        "        self.appended == 3 or segment.append(data, records, self._is_synced)",
        (DOOR, GRANIAN, "-k", "sigterm"),
    ),
    Mutation(
        "segment-shipped-twice",
        "handler/prediction_log/delivery.py",
        "                await self._sink.put(segment.name.key, body, segment.name.compression)",
        "                for key in (segment.name.key, segment.name.key + '2'):\n"
        "                    await self._sink.put(key, body, segment.name.compression)",
        (f"{LOG}/test_log_kill.py", f"{LOG}/test_log_s3.py"),
    ),
    Mutation(
        "connection-dropped-at-the-drain",
        "serving/front/nginx.py",
        "        self._signal(signal.SIGQUIT)",
        "        self._signal(signal.SIGTERM)",
        (DOOR, GRANIAN, "-k", "sigterm"),
    ),
    Mutation(
        "worker-left-behind",
        "serving/process/guard.py",
        "    end_family(int(leader_pid), STOP_TIMEOUT_S)",
        "    return",
        ("tests/serving/process/test_guard.py",),
    ),
    Mutation(
        "answer-before-the-append",
        "handler/classifier.py",
        "                self._log.append(records)",
        "                __import__('threading').Timer(1, self._log.append, [records]).start()",
        (GRANIAN, DOOR, "-k", "killed or sigterm"),
    ),
    Mutation(
        "broken-image-is-a-bug",
        "handler/image/decode.py",
        '        raise UndecodableImage("the image data is broken or incomplete") from error',
        "        raise",
        ("tests/fuzz/test_images.py",),
    ),
    Mutation(
        "big-endian-image-read-as-little-endian",
        "handler/image/decode.py",
        "        grey = (np.asarray(image) >> 8).astype(np.uint8)",
        '        grey = (np.asarray(image).view("<u2") >> 8).astype(np.uint8)',
        ("tests/handler/image/test_decode.py", "-k", "16_bit_grey"),
    ),
    Mutation(
        "body-left-open",
        "handler/request/body_from_front_door.py",
        "            os.close(file)",
        "            pass",
        ("tests/handler/request/test_body_from_front_door.py",),
    ),
    Mutation(
        "another-handler-wins",
        "handler/classifier_entry.py",
        "            del sys.modules[name]",
        "            pass",
        ("tests/archive/test_loads_alone.py", "-k", "imported_before"),
    ),
    Mutation(
        "escapes-reach-the-terminal",
        "offpath/commands/logs.py",
        "        rows = [[printable(cell) for cell in _row(record)] for record in chosen]",
        "        rows = [[cell for cell in _row(record)] for record in chosen]",
        ("tests/offpath/commands/test_logs_poisoned.py", "-k", "surrogates"),
    ),
)


def list_failures(mutation: Mutation) -> list[str]:
    """Runs a mutation's tests in a changed copy of the checkout; returns the red test, if any."""
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
                f"{mutation.name}: {mutation.file} does not have {mutation.old!r} once"
            )
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        # Before the installed package, which is the unchanged checkout.
        environment = {**os.environ, "PYTHONPATH": str(copy), "OFFPATH_TEST_WAIT_S": "30"}
        # A file, because a process that is left behind would keep a pipe open.
        log = Path(folder) / "log"
        with open(log, "wb") as out:
            code = subprocess.call(
                [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *mutation.tests],
                cwd=copy,
                env=environment,
                stdout=out,
            )
        end_processes_below(copy)
        printed = log.read_text(encoding="utf-8", errors="replace")
        if code not in (0, 1):
            raise SystemExit(f"{mutation.name}: pytest ended with {code}\n{printed}")
        return FAILED.findall(printed)


def end_processes_below(folder: Path) -> None:
    """Kills what a mutation has left behind."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("PYTHONPATH", ""):
                process.kill()


def main() -> None:
    """Prints one line per mutation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="mutations to run (default: all)")
    parser.add_argument(
        "--list", action="store_true", help="print the names and files, run nothing"
    )
    options = parser.parse_args()
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := sorted(set(options.names) - known.keys()):
        parser.error(f"no mutation {', '.join(unknown)}; there are {', '.join(known)}")
    green = 0
    for name in options.names or known:
        if options.list:
            print(f"{name}: {known[name].file}")
            continue
        red = list_failures(known[name])
        green += not red
        print(f"{name}: {f'red: {red}' if red else 'GREEN, so no test holds this'}", flush=True)
    raise SystemExit(green > 0)


if __name__ == "__main__":
    main()
