"""One window of load on a server whose settings are being tried."""

from __future__ import annotations

from offpath.profiling.experiments.tuning.result import Window
from offpath.profiling.load.plan import Generator, LoadPlan
from offpath.profiling.load.window import Observer, WindowWatcher
from offpath.profiling.servers.torchserve import RunningTorchServe

# A window goes on until it has as many, for a minute at most: a p95 of fewer says nothing.
MIN_REPLIES = 60


def measure_window(
    running: RunningTorchServe,
    name: str,
    plan: LoadPlan,
    generator: Generator,
    observer: Observer,
) -> Window:
    """Runs a plan on a server.

    Raises:
        ExpectedError: the server died, or the generator did.
    """
    watcher = WindowWatcher(name, running, observer)
    sample = generator.run(plan, watcher)
    cpu_s = watcher.cpu_s(sample)
    watcher.check_running()
    return Window(
        elapsed_s=round(sample.elapsed_s, 4),
        statuses=sample.statuses,
        latencies_ms=[round(ms, 2) for ms in sample.latencies_ms],
        cpu_s=cpu_s,
    )
