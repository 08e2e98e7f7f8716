"""What a lone request costs: one client, one request at a time, beside the same work alone.

In each round three windows take turns on the same photographs: the handler alone in a process of
its own (`light_alone.py`), the client against a server that answers at once, and the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.light_alone import AloneHandler, run_alone
from offpath.profiling.experiments.light_result import LOOPBACK, LightResult, LoneWindow
from offpath.profiling.experiments.session import (
    describe_server,
    find_runnable,
    prepare_servers,
)
from offpath.profiling.load.answers import check_answers, make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.known_server import run_known_server
from offpath.profiling.load.model_under_test import (
    Answer,
    ModelUnderTest,
    load_model,
    name_model,
)
from offpath.profiling.load.plan import LoadPlan, LoadSample, find_generator
from offpath.profiling.load.target import RunningServer, ServerUnderTest
from offpath.profiling.load.window import Observer, WindowWatcher
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registry import make_servers
from offpath.profiling.servers.torchserve import (
    ARCHIVE,
    TorchServeUnderTest,
    make_offpath,
)
from offpath.serving.client import parse_server_timing

# Java compiles its hot path by use: one client alone would take minutes to get there.
WARM_UP_CLIENTS = 8


@dataclass(frozen=True)
class LightChoices:
    """What the user asked for; see `offpath bench light --help`.

    Attributes:
        requests: of a window.
        pause_ms: between a reply and the next request.
        max_batch_delay_ms, batch_size: instead of the archive's own; None leaves them.
    """

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    rounds: int
    requests: int
    warm_up_s: float
    pause_ms: float
    max_batch_delay_ms: int | None
    batch_size: int | None
    seed: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """For the result."""
        left_out = ("servers", "command", "workloads")
        kept = {k: v for k, v in asdict(self).items() if k not in left_out}
        return {**kept, "model": name_model(self.model)}


class LoneClient:
    """One client that sends its bodies in turn, each after the reply to the last."""

    def __init__(
        self, client: FirstClient, bodies: Sequence[bytes], pause_s: float
    ) -> None:
        self._client, self._bodies, self._pause_s = client, cycle(bodies), pause_s

    def measure(
        self, round_: int, server: str, workload: str, requests: int
    ) -> LoneWindow:
        """Sends the next bodies.

        Raises:
            ExpectedError: no reply, or another than 200.
        """
        latencies_ms: list[float] = []
        timings: list[dict[str, float]] = []
        begin_s = time.perf_counter()
        for body in islice(self._bodies, requests):
            if self._pause_s:
                time.sleep(self._pause_s)
            latency_ms, headers = self._client.send(body)
            latencies_ms.append(latency_ms)
            timings.append(parse_server_timing(headers.get("Server-Timing", "")))
        return LoneWindow(
            round=round_,
            server=server,
            workload=workload,
            elapsed_s=round(time.perf_counter() - begin_s, 4),
            latencies_ms=latencies_ms,
            stages_ms=transpose(timings),
        )


def transpose(timings: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Stage -> a value a request; empty unless every reply told the same stages."""
    names = list(timings[0]) if timings else []
    if any(list(timing) != names for timing in timings):
        return {}
    return {name: [timing[name] for timing in timings] for name in names}


class LightBench:
    """One run: what its measurements share."""

    def __init__(
        self,
        choices: LightChoices,
        model: ModelUnderTest,
        observer: Observer,
        result: LightResult,
        save: Callable[[LightResult], None],
    ) -> None:
        self._choices, self._model, self._observer = choices, model, observer
        self._result, self._save = result, save

    def measure(
        self,
        workload: Workload,
        servers: Sequence[ServerUnderTest],
        archive: Path,
        folder: Path,
    ) -> None:
        """All servers on one workload, each beside the handler alone."""
        choices = self._choices
        self._observer.on_step(f"{workload.name}: the handler alone")
        checks = make_checks(self._model, workload.read())
        alone_folder = folder / f"alone-{len(self._result.windows)}"
        bodies = Bodies(
            folder / f"bodies-{len(self._result.windows)}", self._model.config
        )
        with run_alone(
            archive, workload.name, workload.paths, choices.requests, alone_folder
        ) as alone:
            for server in servers:
                self._measure_server(workload, server, alone, checks, bodies)

    def _measure_server(
        self,
        workload: Workload,
        server: ServerUnderTest,
        alone: AloneHandler,
        checks: Sequence[tuple[bytes, Answer]],
        bodies: Bodies,
    ) -> None:
        """Starts it, warms it up, and takes the rounds in turn."""
        choices = self._choices
        where = f"{workload.name}: {server.name}"
        self._observer.on_step(f"{where}: start and warm up")
        sent = [bodies.make(photo, server.call) for photo in workload.read()]
        with ExitStack() as stack:
            running = stack.enter_context(server.running())
            checked = [(bodies.make(p, server.call), answer) for p, answer in checks]
            check_answers(server.name, running.predict_url, server.call, checked)
            watcher = WindowWatcher(server.name, running, self._observer)
            self._warm_up(running, server, bodies.paths(workload, server.call), watcher)
            known = stack.enter_context(run_known_server())
            clients = [
                LoneClient(
                    stack.enter_context(FirstClient(name, url, server.call)),
                    sent,
                    choices.pause_ms / 1e3,
                )
                for name, url in (
                    (LOOPBACK, known.url),
                    (server.name, running.predict_url),
                )
            ]
            for client in clients:
                client.measure(-1, server.name, workload.name, choices.requests)
            for round_ in range(choices.rounds):
                self._observer.on_step(f"{where}: round {round_ + 1}/{choices.rounds}")
                self._keep(alone.measure(round_, choices.requests))
                self._keep(self._take(clients[0], round_, LOOPBACK, workload))
                self._keep(
                    self._take(clients[1], round_, server.name, workload, watcher)
                )

    def _warm_up(
        self,
        running: RunningServer,
        server: ServerUnderTest,
        paths: tuple[Path, ...],
        watcher: WindowWatcher,
    ) -> None:
        if not self._choices.warm_up_s:
            return
        plan = LoadPlan(
            running.predict_url,
            paths,
            WARM_UP_CLIENTS,
            0.0,
            self._choices.warm_up_s,
            headers=server.call.all_headers,
        )
        find_generator("locust").run(plan, watcher)

    def _take(
        self,
        client: LoneClient,
        round_: int,
        server: str,
        workload: Workload,
        watcher: WindowWatcher | None = None,
    ) -> LoneWindow:
        """One window, with its CPU time where a server is watched."""
        if watcher is not None:
            watcher.on_window()
        own_s = time.process_time()
        window = client.measure(round_, server, workload.name, self._choices.requests)
        if watcher is None:
            return window
        statuses = {"200": len(window.latencies_ms)}
        cpu_s = watcher.cpu_s(
            LoadSample(
                window.elapsed_s,
                statuses,
                window.latencies_ms,
                time.process_time() - own_s,
            )
        )
        return replace(window, cpu_s=cpu_s)

    def _keep(self, window: LoneWindow) -> None:
        self._result.windows.append(window)
        self._save(self._result)


def run_light(
    choices: LightChoices, observer: Observer, save: Callable[[LightResult], None]
) -> LightResult:
    """Runs it.

    Args:
        save: called with all windows so far, after each.

    Raises:
        ExpectedError: wrong choices; a server that does not start, answers wrongly or dies.
    """
    model, cores = load_model(choices.model), count_cores()
    asked = [
        adjust(server, choices)
        for server in make_servers(choices.servers, model, cores)
    ]
    workloads = [
        load_workload(name, choices.seed, observer.on_step)
        for name in choices.workloads
    ]
    servers, _ = find_runnable(asked, observer)
    result = LightResult(
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workloads={w.name: w.facts for w in workloads},
        servers={server.name: describe_server(server) for server in servers},
        delays_ms=dict(list_delays(servers)),
    )
    is_done = False
    with work_folder(lambda: not is_done) as folder:
        offpath = adjust(make_offpath(model, cores), choices)
        offpath.prepare(folder / "alone")
        prepared, failed = prepare_servers(servers, folder, observer)
        bench = LightBench(choices, model, observer, result, save)
        for workload in workloads:
            bench.measure(workload, prepared, folder / "alone" / ARCHIVE, folder)
        is_done = not failed
    return result


def adjust(server: ServerUnderTest, choices: LightChoices) -> ServerUnderTest:
    """The server with the batch settings that were asked for, where it has any."""
    if not isinstance(server, TorchServeUnderTest) or not server.archive_settings:
        return server
    delay_ms, size = choices.max_batch_delay_ms, choices.batch_size
    settings = dict(server.archive_settings)
    if delay_ms is not None:
        settings["maxBatchDelay"] = delay_ms
    return replace(
        server,
        archive_settings=settings,
        batch_size=server.batch_size if size is None else size,
    )


def list_delays(servers: Sequence[ServerUnderTest]) -> Iterator[tuple[str, float]]:
    """What a lone request waits for others in each TorchServe: nothing at batch size 1."""
    for server in servers:
        if isinstance(server, TorchServeUnderTest):
            config = server.config
            batches = config.get("batchSize", 1) > 1
            yield server.name, float(config["maxBatchDelay"]) if batches else 0.0
