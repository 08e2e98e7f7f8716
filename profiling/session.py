"""One benchmark run from choices to result: prepares, measures, saves after each server's round."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.answers import make_checks
from profiling.bench import BenchPlan, Observer, run_bench
from profiling.bodies import Bodies
from profiling.host import count_cores, describe_host
from profiling.limits import LimitMeter
from profiling.load import find_generator
from profiling.model_under_test import load_model
from profiling.result import BenchResult, merge_results
from profiling.servers.registry import make_servers
from profiling.workload import Workload, load_workload

LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0


@dataclass(frozen=True)
class BenchChoices:
    """What the user asked for; see `offpath bench compare --help`."""

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    generator: str
    clients: int
    rounds: int
    seconds: float | None
    requests: int | None
    warm_up_s: float
    seed: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be merged."""
        kept = (
            "model",
            "generator",
            "clients",
            "seconds",
            "requests",
            "warm_up_s",
            "seed",
        )
        return {name: getattr(self, name) for name in kept} | {
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }


def run_session(
    choices: BenchChoices,
    observer: Observer,
    save: Callable[[BenchResult], None],
    earlier: BenchResult | None = None,
) -> BenchResult:
    """Runs a whole benchmark.

    Args:
        save: called with all finished rounds, after each.
        earlier: rounds of a run to be continued; unlike ones are refused before anything starts.

    Raises:
        ExpectedError: wrong choices, a server that fails, an unlike earlier run. The servers' logs
            are kept then.
    """
    generator = find_generator(choices.generator)
    cores = count_cores()
    model = load_model(choices.model)
    servers = make_servers(choices.servers, model, cores)
    workloads = [
        load_workload(name, choices.seed, observer.on_step)
        for name in choices.workloads
    ]
    result = begin_result(choices, workloads)
    result.servers.update({server.name: server.settings for server in servers})
    if earlier is not None:
        merge_results(earlier, result)
    observer.on_step("reference answers")
    checks = {
        workload.name: make_checks(model, workload.read()) for workload in workloads
    }

    def combined() -> BenchResult:
        return result if earlier is None else merge_results(earlier, result)

    saving = SavingObserver(observer, lambda: save(combined()))
    with work_folder() as folder, LimitMeter(
        choices.model, cores, LIMIT_BATCH_SIZE, LIMIT_SECONDS
    ) as meter:
        plan = BenchPlan(
            workloads,
            servers,
            generator,
            choices.clients,
            choices.rounds,
            choices.seconds,
            choices.requests,
            choices.warm_up_s,
            choices.seed,
            checks,
            Bodies(folder, model.config),
        )
        for server in servers:
            observer.on_step(f"{server.name}: build")
            server.prepare(folder / server.name)
        run_bench(plan, result, meter, saving)
    return combined()


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder that stays when a server failed: its log is in there."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-bench-"))
    try:
        yield folder
    except ExpectedError:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def begin_result(choices: BenchChoices, workloads: Sequence[Workload]) -> BenchResult:
    """A result without measurements."""
    return BenchResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workloads={
            workload.name: {
                "identity": workload.identity,
                "mean_bytes": workload.mean_bytes,
                "count": len(workload.paths),
            }
            for workload in workloads
        },
        servers={},
    )


class SavingObserver:
    """Passes everything on, and saves when something was measured."""

    def __init__(self, inner: Observer, save: Callable[[], None]) -> None:
        self._inner, self._save = inner, save

    def on_step(self, text: str) -> None:
        """See `Observer`."""
        self._inner.on_step(text)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """See `Observer`."""
        self._inner.on_replies(replies, elapsed_s)

    def on_measured(self) -> None:
        """Saves, then passes it on."""
        self._save()
        self._inner.on_measured()
