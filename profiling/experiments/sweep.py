"""Servers against the number of virtual users, as published comparisons do it.

Scenario `keep`: each server is started once and meets all steps in turn. Scenario `restart`: before
each step it is started afresh, and the servers take turns at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.session import (
    START_S,
    describe_server,
    find_runnable,
    prepare_servers,
)
from offpath.profiling.experiments.sweep_result import Step, StepFailure, SweepResult
from offpath.profiling.load.answers import check_answers, make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.model_under_test import Answer, load_model, name_model
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.target import RunningServer, ServerUnderTest
from offpath.profiling.load.window import Observer, WindowWatcher
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registry import make_servers

# Before each further step of a server that keeps running.
SETTLE_S = 2.0


@dataclass(frozen=True)
class SweepChoices:
    """What the user asked for; see `offpath bench sweep --help`."""

    scenario: str
    users: tuple[int, ...]
    workload: str
    model: str
    servers: tuple[str, ...]
    batch_size: int
    seconds: float
    warm_up_s: float
    seed: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """For the result."""
        left_out = ("servers", "command", "workload")
        kept = {k: v for k, v in asdict(self).items() if k not in left_out}
        return {**kept, "model": name_model(self.model)}

    @property
    def estimated_s(self) -> float:
        """How long the steps take together, roughly; builds come on top."""
        steps, once_s = len(self.users), START_S + self.warm_up_s
        each_s = steps * self.seconds
        if self.scenario == "restart":
            return len(self.servers) * (steps * once_s + each_s)
        return len(self.servers) * (once_s + each_s + (steps - 1) * SETTLE_S)


class Sweep:
    """One run: what its steps share."""

    def __init__(
        self,
        choices: SweepChoices,
        observer: Observer,
        save: Callable[[SweepResult], None],
    ) -> None:
        self._choices, self._observer, self._save = choices, observer, save
        self._generator = find_generator("locust")

    def run(self) -> SweepResult:
        """Measures all steps; the result has the finished ones after each."""
        choices, observer = self._choices, self._observer
        model = load_model(choices.model)
        asked = make_servers(choices.servers, model, count_cores())
        for server in asked:
            server.batch_size = choices.batch_size
        self._workload = load_workload(choices.workload, choices.seed, observer.on_step)
        servers, not_run = find_runnable(asked, observer)
        self.result = begin_result(choices, self._workload, servers, not_run)
        with work_folder(lambda: bool(self.result.failures)) as folder:
            prepared, failed = prepare_servers(servers, folder, observer)
            for name, reason in failed.items():
                self.result.failures.append(StepFailure(name, 0, reason))
            observer.on_step("reference answers")
            checks = make_checks(model, self._workload.read())
            self.measure(prepared, checks, Bodies(folder, model.config))
        return self.result

    def measure(
        self,
        servers: Sequence[ServerUnderTest],
        checks: Sequence[tuple[bytes, Answer]],
        bodies: Bodies,
    ) -> None:
        """Measures servers that are prepared."""
        self._checks, self._bodies = checks, bodies
        if self._choices.scenario == "keep":
            for server in servers:
                self._measure_steps(server, self._choices.users)
            return
        left_out: set[str] = set()
        for users in self._choices.users:
            for server in servers:
                if server.name not in left_out and not self._measure_steps(
                    server, [users]
                ):
                    left_out.add(server.name)

    def _measure_steps(self, server: ServerUnderTest, steps: Sequence[int]) -> bool:
        """Starts the server, measures the steps; False when it did not start or answers wrongly."""
        has_started, users = False, steps[0]
        try:
            with ExitStack() as stack:
                self._observer.on_step(f"{server.name}: start")
                running = stack.enter_context(server.running())
                check_answers(
                    server.name, running.predict_url, server.call, self._bodied(server)
                )
                has_started = True
                for users in steps:
                    warm_up_s = (
                        self._choices.warm_up_s if users == steps[0] else SETTLE_S
                    )
                    self._measure_step(server, running, users, warm_up_s)
        except ExpectedError as error:
            self.result.failures.append(StepFailure(server.name, users, str(error)))
            self._observer.on_failure(server.name, str(error))
            self._save(self.result)
        return has_started

    def _bodied(self, server: ServerUnderTest) -> list[tuple[bytes, Answer]]:
        return [
            (self._bodies.make(photograph, server.call), answer)
            for photograph, answer in self._checks
        ]

    def _measure_step(
        self,
        server: ServerUnderTest,
        running: RunningServer,
        users: int,
        warm_up_s: float,
    ) -> None:
        self._observer.on_step(f"{server.name}: {users} users")
        plan = LoadPlan(
            running.predict_url,
            self._bodies.paths(self._workload, server.call),
            users,
            warm_up_s,
            self._choices.seconds,
            seed=self._choices.seed,
            headers=server.call.all_headers,
        )
        watcher = WindowWatcher(server.name, running, self._observer)
        sample = self._generator.run(plan, watcher)
        watcher.check_running()
        self.result.steps.append(
            Step(
                server.name,
                users,
                round(sample.elapsed_s, 4),
                sample.statuses,
                sample.latencies_ms,
                watcher.cpu_s(sample),
            )
        )
        self._save(self.result)
        self._observer.on_measured()


def run_sweep(
    choices: SweepChoices, observer: Observer, save: Callable[[SweepResult], None]
) -> SweepResult:
    """Runs a whole sweep.

    Args:
        save: called with all finished steps, after each.

    Raises:
        ExpectedError: wrong choices, or no server that can run.
    """
    return Sweep(choices, observer, save).run()


def begin_result(
    choices: SweepChoices,
    workload: Workload,
    servers: Sequence[ServerUnderTest],
    not_run: dict[str, str],
) -> SweepResult:
    """A result without steps."""
    return SweepResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workload={"name": workload.name, **workload.facts},
        servers={server.name: describe_server(server) for server in servers},
        not_run=not_run,
    )
