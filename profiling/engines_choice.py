"""What the engines' benchmark is asked to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.engines_result import BASELINE, UNFOLDED


@dataclass(frozen=True)
class EnginesChoices:
    """What the user asked for; see `offpath bench engines --help`.

    Attributes:
        engines: `openvino` for all its precisions, `openvino:int8` for one; empty for all.
        processes: that run at the same time, with one thread each.
    """

    models: tuple[str, ...]
    engines: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    rounds: int
    seconds: float
    processes: int
    device: str
    workload: str
    seed: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be merged."""
        return {
            "batch_sizes": list(self.batch_sizes),
            "seconds": self.seconds,
            "processes": self.processes,
            "device": self.device,
        }


@dataclass(frozen=True)
class Subject:
    """One variant of one model, ready to be built.

    Attributes:
        order: what its processes are told.
    """

    model: str
    variant: str
    order: dict[str, Any]
    folder: Path

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.variant} of {self.model}"


def choose_variants(
    asked: Sequence[str], known: Mapping[str, str | None]
) -> tuple[list[str], dict[str, str]]:
    """The variants to measure, the baseline always and first, and why others cannot run here.

    Args:
        asked: `engine` or `engine:precision`; empty for all.
        known: variant -> why it cannot run here, None for those that can.

    Raises:
        ExpectedError: an unknown name, or nothing of what was asked for can run here.
    """
    chosen = [BASELINE]
    for name in asked or [*dict.fromkeys(variant.split()[0] for variant in known)]:
        engine, _, precision = name.partition(":")
        matching = [
            variant
            for variant in known
            if variant.split()[0] == engine
            and precision in ("", variant.split()[1])
            and variant not in chosen
        ]
        if not matching and name not in ("eager", BASELINE.replace(" ", ":")):
            accepted = ", ".join(variant.replace(" ", ":") for variant in known)
            raise ExpectedError(
                f"engine {name!r} is unknown or named twice; expected an engine (`openvino`) or one"
                f" with its precision: {accepted}"
            )
        chosen += matching
    not_run = {name: reason for name in chosen if (reason := known[name])}
    if len(not_run) == len(chosen) - 1 and asked and not_run:
        raise ExpectedError(
            "none of the engines asked for can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return [name for name in chosen if name not in not_run], not_run


def make_subject(
    choices: EnginesChoices,
    model: str,
    variant: str,
    facts: Mapping[str, Any],
    folder: Path,
) -> Subject:
    """One variant of a model.

    Args:
        facts: what `prepare` of engines_builder.py answered.
    """
    engine, precision = variant.split()[:2]
    order = {
        "model": model,
        "engine": engine,
        "precision": precision,
        "fold": variant != UNFOLDED,
        "folder": str(folder),
        "device": choices.device,
        "handler": facts["handler"],
        "model_module": facts["model_module"],
        "max_batch": max(choices.batch_sizes),
    }
    return Subject(model, variant, order, folder)
