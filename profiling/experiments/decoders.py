"""Measures ways from a JPEG to the model's input on one core, and what each does to the answers.

Every photograph is taken by all ways in turn, so that whatever else the machine does meets them
alike, and the time is the process' own CPU time. Answers are those of
EfficientNet-Lite0 with its real weights, beside the stock way's; seeded weights would not tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.decode import JPEG_MAGIC
from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import describe_host, read_versions
from offpath.profiling.core.saved import Saved
from offpath.profiling.experiments.decoders_ways import (
    BASELINES,
    PAIR,
    WAYS,
    Run,
    make_input,
    prepare_ways,
)
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import Workload, load_workload

MODEL = "efficientnet-lite0"
BATCH = 8

Say = Callable[[str], None]


@dataclass(frozen=True)
class DecodersChoices:
    """What the user asked for; see `offpath bench decoders --help`."""

    workloads: tuple[str, ...]
    rounds: int
    photographs: int
    seed: int
    command: str


@dataclass(frozen=True)
class DecodersMeasurement:
    """All photographs of a workload, once, one way; cpu_s below elapsed_s means a shared core."""

    round: int
    workload: str
    way: str
    images: int
    elapsed_s: float
    cpu_s: float


@dataclass(frozen=True)
class Parity:
    """A way's answers beside the stock way's.

    Attributes:
        difference: the largest of any probability of any photograph.
        changed: photographs whose best class is another.
    """

    workload: str
    way: str
    difference: float
    changed: int


@dataclass
class DecodersResult:
    """A run; `not_run` says by way why it cannot run here."""

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    ways: dict[str, dict[str, Any]]
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    measurements: list[DecodersMeasurement] = field(default_factory=list)
    parity: list[Parity] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)


DECODERS = Saved("offpath-decoders/1", DecodersResult, "bench decoders")


def run_decoders(
    choices: DecodersChoices, say: Say, save: Callable[[DecodersResult], None]
) -> DecodersResult:
    """Checks and measures all ways that work here; one thread.

    Raises:
        ExpectedError: a workload without JPEGs.
    """
    torch.set_num_threads(1)
    model = load_model(MODEL)
    runs, not_run = prepare_ways(WAYS, model.config)
    result = DecodersResult(
        choices.command,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
        {key: value for key, value in asdict(choices).items() if key != "command"},
        describe_ways(),
        not_run=dict(not_run),
    )
    for name in choices.workloads:
        workload = load_workload(name, choices.seed, say)
        payloads = read_jpegs(workload, choices.photographs)
        result.workloads[name] = describe_photographs(workload, payloads)
        say(f"{name}: answers")
        module = model.source.module.eval()
        result.parity += compare_answers(name, runs, payloads, model.config, module)
        for round_ in range(choices.rounds):
            say(f"{name}: round {round_ + 1} of {choices.rounds}")
            result.measurements += [
                DecodersMeasurement(round_, name, way, len(payloads), *measured)
                for way, measured in measure_round(runs, payloads).items()
            ]
            save(result)
    return result


def describe_ways() -> dict[str, dict[str, Any]]:
    """Kind and versions of each way, whether it can run here or not."""
    return {
        way.name: {
            "kind": way.kind,
            "is_ours": way.is_ours,
            "versions": read_versions(way.packages),
        }
        for way in WAYS
    }


def read_jpegs(workload: Workload, most: int) -> list[bytearray]:
    """The first JPEGs, as TorchServe would hand them over."""
    payloads = (bytearray(path.read_bytes()) for path in workload.paths)
    jpegs = [payload for payload in payloads if payload[:3] == JPEG_MAGIC][:most]
    if not jpegs:
        raise ExpectedError(
            f"no JPEG in workload {workload.name!r}: expected at least one; the other formats are"
            " decoded by Pillow alone"
        )
    return jpegs


def describe_photographs(
    workload: Workload, payloads: Sequence[bytearray]
) -> dict[str, Any]:
    """What a result says of a workload; the mean is of the photographs that were taken."""
    return {
        "identity": workload.identity,
        "mean_bytes": round(sum(map(len, payloads)) / len(payloads)),
        "count": len(payloads),
    }


def measure_round(
    runs: Mapping[str, Run], payloads: Sequence[bytearray]
) -> dict[str, tuple[float, float]]:
    """Each photograph by each way, once.

    Returns:
        by way: seconds by the clock and seconds of CPU, of all photographs.
    """
    totals = dict.fromkeys(runs, (0.0, 0.0))
    for payload in payloads:
        for way, run in runs.items():
            start, cpu = time.perf_counter(), time.process_time()
            run(payload)
            cpu, elapsed = time.process_time() - cpu, time.perf_counter() - start
            totals[way] = totals[way][0] + elapsed, totals[way][1] + cpu
    return totals


def compare_answers(
    workload: str,
    runs: Mapping[str, Run],
    payloads: Sequence[bytearray],
    config: HandlerConfig,
    module: torch.nn.Module,
) -> list[Parity]:
    """Every way's answers beside those of the stock way.

    Raises:
        ExpectedError: a photograph that a way cannot decode.
    """
    stock = classify(runs[BASELINES[PAIR]], payloads, config, module)
    answers = []
    for way, run in runs.items():
        own = classify(run, payloads, config, module)
        changed = int((own.argmax(1) != stock.argmax(1)).sum())
        answers.append(Parity(workload, way, float((own - stock).abs().max()), changed))
    return answers


def classify(
    run: Run,
    payloads: Sequence[bytearray],
    config: HandlerConfig,
    module: torch.nn.Module,
) -> torch.Tensor:
    """Probabilities, float32 [photographs, classes]."""
    inputs = []
    for index, payload in enumerate(payloads):
        try:
            inputs.append(make_input(run(payload), config))
        except Exception as error:  # each library has its own
            raise ExpectedError(
                f"photograph {index + 1} of the workload cannot be decoded by every way:"
                f" {error!r}; leave it out"
            ) from error
    with torch.inference_mode():
        batches = torch.stack(inputs).split(BATCH)
        return torch.cat([torch.softmax(module(batch), 1) for batch in batches])
