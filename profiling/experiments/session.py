"""One benchmark run from choices to result: prepares, measures, saves after each server's round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.core.result import BenchResult, Failure, merge_results
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.bench import (
    TURN_WARM_UP_S,
    BenchPlan,
    Windows,
    run_bench,
)
from offpath.profiling.load.answers import make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.limits import LimitMeter
from offpath.profiling.load.model_under_test import load_model, name_model
from offpath.profiling.load.plan import find_generator
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.window import Observer
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registry import make_servers

LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0
# Of a start with the check of the answers, for the estimate.
START_S = 10.0


@dataclass(frozen=True)
class BenchChoices:
    """What the user asked for; see `offpath bench compare --help`."""

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    generator: str
    rounds: int
    windows: Windows
    cold_start: bool
    command: str
    tries: int = 1
    side_by_side: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be merged."""
        return {
            "model": name_model(self.model),
            "generator": self.generator,
            **asdict(self.windows),
            "cold_start": self.cold_start,
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
            # Absent from the results of old: they had no such choice.
            **({"side_by_side": True} if self.side_by_side else {}),
        }


def estimate_s(choices: BenchChoices) -> float:
    """How long the rounds take together, roughly; builds and slow servers come on top."""
    windows, servers = choices.windows, len(choices.servers)
    seconds, workloads = windows.seconds or 0.0, len(choices.workloads)
    first_s = START_S + workloads * (windows.warm_up_s + seconds)
    turn_s = workloads * (min(windows.warm_up_s, TURN_WARM_UP_S) + seconds)
    next_s = turn_s if choices.side_by_side else first_s
    limits_s = (workloads + 1) * LIMIT_SECONDS * choices.rounds
    return limits_s + servers * (first_s + (choices.rounds - 1) * next_s)


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
        ExpectedError: wrong choices, no server that can run, an unlike earlier run.
    """
    generator = find_generator(choices.generator)
    generator.check(choices.windows.seconds, choices.windows.rate)
    cores = count_cores()
    model = load_model(choices.model)
    asked = make_servers(choices.servers, model, cores)
    workloads = [
        load_workload(name, choices.windows.seed, observer.on_step)
        for name in choices.workloads
    ]
    servers, not_run = find_runnable(asked, observer)
    result = begin_result(choices, workloads)
    result.not_run.update(not_run)
    result.servers.update({server.name: describe_server(server) for server in servers})
    if earlier is not None:
        merge_results(earlier, result)
    observer.on_step("reference answers")
    checks = {
        workload.name: make_checks(model, workload.read()) for workload in workloads
    }

    def combined() -> BenchResult:
        return result if earlier is None else merge_results(earlier, result)

    saving = SavingObserver(observer, lambda: save(combined()))
    with work_folder(lambda: bool(result.failures)) as folder, LimitMeter(
        choices.model, cores, LIMIT_BATCH_SIZE, LIMIT_SECONDS
    ) as meter:
        prepared, failed = prepare_servers(servers, folder, observer)
        for name, reason in failed.items():
            result.failures.append(Failure(0, name, reason))
        plan = BenchPlan(
            workloads,
            prepared,
            generator,
            choices.rounds,
            choices.windows,
            choices.cold_start,
            checks,
            Bodies(folder, model.config),
            choices.tries,
            choices.side_by_side,
        )
        run_bench(plan, result, meter, saving)
    return combined()


def describe_server(server: ServerUnderTest) -> dict[str, Any]:
    """How a server is set up and what its clients send."""
    return {**server.settings, "content": server.call.content}


def find_runnable(
    servers: Sequence[ServerUnderTest], observer: Observer
) -> tuple[list[ServerUnderTest], dict[str, str]]:
    """The servers that can run here, and why the others cannot.

    Raises:
        ExpectedError: none can.
    """
    not_run = {}
    for server in servers:
        reason = server.why_not()
        if reason is not None:
            not_run[server.name] = reason
            observer.on_failure(server.name, reason)
    runnable = [server for server in servers if server.name not in not_run]
    if not runnable:
        raise ExpectedError(
            "none of the servers can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return runnable, not_run


def prepare_servers(
    servers: Sequence[ServerUnderTest], folder: Path, observer: Observer
) -> tuple[list[ServerUnderTest], dict[str, str]]:
    """Builds what the servers need; the built ones, and why others could not be built."""
    failed = {}
    for server in servers:
        observer.on_step(f"{server.name}: build")
        try:
            server.prepare(folder / server.name)
        except ExpectedError as error:
            failed[server.name] = str(error)
            observer.on_failure(server.name, str(error))
    return [server for server in servers if server.name not in failed], failed


def begin_result(choices: BenchChoices, workloads: Sequence[Workload]) -> BenchResult:
    """A result without measurements."""
    return BenchResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workloads={workload.name: workload.facts for workload in workloads},
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

    def on_failure(self, server: str, reason: str) -> None:
        """See `Observer`."""
        self._inner.on_failure(server, reason)

    def on_measured(self) -> None:
        """Saves, then passes it on."""
        self._save()
        self._inner.on_measured()
