"""The winner as a preset file that `offpath archive --preset FILE` takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpath.archive.model_config import format_model_config, make_model_config
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.choice import Verdict
from offpath.profiling.experiments.tuning.result import TuneResult
from offpath.profiling.experiments.tuning.space import Candidate


def check_writable(path: Path, force: bool) -> None:
    """Raises ExpectedError before the search rather than after it."""
    if path.is_dir():
        raise ExpectedError(
            f"--output {str(path)!r} is a folder: expected a file's name"
        )
    if path.exists() and not force:
        raise ExpectedError(
            f"--output {str(path)!r} exists: pass --force to replace it"
        )


def make_preset(preset: Mapping[str, Any], winner: Candidate) -> dict[str, Any]:
    """A preset with the winner's settings over the old ones; checked as `offpath archive` does."""
    settings = {
        **preset,
        "minWorkers": winner.workers,
        "maxWorkers": winner.workers,
        "batchSize": winner.batch_size,
        "maxBatchDelay": winner.max_batch_delay_ms,
    }
    if winner.threads:
        settings["handler"] = {
            **(preset.get("handler") or {}),
            "threads": winner.threads,
        }
    make_model_config(settings, {}, {})
    return settings


def write_preset(
    path: Path, preset: Mapping[str, Any], result: TuneResult, verdict: Verdict
) -> None:
    """Writes the file with its origin in comments."""
    if verdict.winner is None:
        raise ValueError("nothing won")
    origin = [
        f"{result.started_at}: {result.command}",
        f"{verdict.winner}: {verdict.text}",
        f"on {result.search['host']['cores']} x {result.search['host']['cpu']}",
    ]
    comment = "".join(f"# {line}\n" for line in origin)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        comment + format_model_config(make_preset(preset, verdict.winner)),
        encoding="utf-8",
    )
