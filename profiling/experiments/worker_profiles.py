"""cProfile in a server's workers: a copy of the archive that can be profiled, and what it wrote.

The request path of the archive's own handler is not touched: `baselines/profiled_entry.py` stands
in front of it.
"""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import offpath
from offpath.handler.errors import ExpectedError
from offpath.profiling.profilers.call_profiler import merge_profiles, read_stats
from offpath.profiling.profilers.cprofile import make_samples, shorten_stats
from offpath.profiling.profilers.samples import FunctionSample, make_shortener
from offpath.serving.mar_file import MANIFEST, read_mar

ROOT = Path(offpath.__file__).parent
ENTRY = ROOT / "profiling" / "baselines" / "profiled_entry.py"
# What the entry imports; staged under the same names, so that imports read alike.
STAGED = (
    "__init__.py",
    "profiling/__init__.py",
    "profiling/profilers/__init__.py",
    "profiling/profilers/call_profiler.py",
    "profiling/profilers/worker_threads.py",
)
# The file's name inside the archive: no handler of a user's is called so.
ENTRY_NAME = "offpath_profiled_entry.py"
# As in profiled_entry.py, which nothing of ours can be imported into.
ENTRY_SETTINGS = "profiled_handler.json"
FOLDER_VARIABLE = "OFFPATH_PROFILE_DIR"
WRITE_TIMEOUT_S = 20.0
POLL_S = 0.1


def wrap_archive(archive: Path, target: Path) -> Path:
    """Writes a copy of `archive` with the profiling entry in front of its handler.

    Raises:
        ExpectedError: no archive, or one without a handler.
    """
    handler = read_mar(archive).handler
    if not handler:
        raise ExpectedError(f"{archive} names no handler in its manifest")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == MANIFEST:
                manifest = json.loads(content)
                manifest["model"]["handler"] = ENTRY_NAME
                content = json.dumps(manifest).encode()
            new.writestr(info, content)
        new.writestr(ENTRY_NAME, ENTRY.read_bytes())
        for name in STAGED:
            if f"offpath/{name}" not in old.namelist():
                new.writestr(f"offpath/{name}", (ROOT / name).read_bytes())
        new.writestr(ENTRY_SETTINGS, json.dumps({"handler": handler}))
    return target


@dataclass(frozen=True)
class WorkerProfiles:
    """What the workers wrote.

    Attributes:
        files: `<pid>.prof`, one a worker.
        model_dir: where TorchServe unzipped the archive; code objects carry that path.
        doubts: what is missing, as sentences.
    """

    files: list[Path]
    model_dir: str
    doubts: list[str]


@dataclass(frozen=True)
class WorkerProfiler:
    """The control files of a server that serves a wrapped archive."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """For the server."""
        return {FOLDER_VARIABLE: str(self.folder)}

    def start(self) -> None:
        """Every worker records from its next batch on, within a tenth of a second."""
        (self.folder / "start").touch()

    def stop(self, workers: int) -> WorkerProfiles:
        """Ends the recording and waits until the workers have written."""
        (self.folder / "stop").touch()
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        while len(self._done()) < workers and time.monotonic() < deadline:
            time.sleep(POLL_S)
        done, files = self._done(), sorted(self.folder.glob("*.prof"))
        doubts = []
        if len(done) < workers:
            doubts.append(
                f"{workers - len(done)} of {workers} workers wrote no profile in"
                f" {WRITE_TIMEOUT_S:.0f} s: dead, or in one batch for so long"
            )
        elif len(files) < workers:
            doubts.append(
                f"{workers - len(files)} of {workers} workers had no batch while recording"
            )
        return WorkerProfiles(files, done[0].read_text() if done else "", doubts)

    def _done(self) -> list[Path]:
        return sorted(self.folder.glob("*.done"))


def read_functions(written: WorkerProfiles) -> list[FunctionSample]:
    """All workers' functions together."""
    stats = read_stats(merge_profiles([str(path) for path in written.files]))
    return make_samples(shorten_stats(stats, make_shortener(written.model_dir)))
