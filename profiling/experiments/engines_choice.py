"""What the engines' benchmark is asked to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpath.handler.backends import PRECISIONS
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.engines_result import BASELINE


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


def choose_variants(asked: Sequence[str]) -> list[str]:
    """The variants that were asked for, the baseline always and first.

    Args:
        asked: `engine` or `engine:precision`; empty for all.

    Raises:
        ExpectedError: an unknown name.
    """
    known = [
        f"{engine} {p}" for engine, precisions in PRECISIONS.items() for p in precisions
    ]
    chosen = [BASELINE]
    for name in asked or PRECISIONS:
        engine, _, precision = name.partition(":")
        matching = [
            variant
            for variant in known
            if variant.split()[0] == engine and precision in ("", variant.split()[1])
        ]
        if not matching:
            accepted = ", ".join(variant.replace(" ", ":") for variant in known)
            raise ExpectedError(
                f"engine {name!r} is unknown; expected an engine (`openvino`) or one with its"
                f" precision: {accepted}"
            )
        chosen += matching
    return list(dict.fromkeys(chosen))


def drop_missing(
    chosen: Sequence[str], reasons: Mapping[str, str | None]
) -> tuple[list[str], dict[str, str]]:
    """The variants that can run here, and why others cannot.

    Args:
        reasons: variant -> why it cannot, None for those that can.

    Raises:
        ExpectedError: nothing but the baseline is left of several.
    """
    not_run = {name: reason for name in chosen if (reason := reasons[name])}
    left = [name for name in chosen if name not in not_run]
    if len(left) <= 1 < len(chosen):
        raise ExpectedError(
            "none of the engines asked for can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return left, not_run


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
        "folder": str(folder),
        "device": choices.device,
        "handler": facts["handler"],
        "model_module": facts["model_module"],
        "max_batch": max(choices.batch_sizes),
    }
    return Subject(model, variant, order, folder)
