"""What the log costs, beside none and beside one put_object per prediction."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record, format_inference_time
from offpath.handler.prediction_log.settings import PredictionLogSettings
from offpath.profiling.baselines.naive_archive import build_naive
from offpath.profiling.experiments.log_trials.setup import (
    BUCKET,
    MODEL,
    Say,
    build_archive,
    make_environ,
    serve,
)
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.s3_faults import ANSWERS_PER_PUT, FaultProxy
from offpath.profiling.servers.s3_servers import run_seaweedfs

WARM_UP_S = 3.0


@dataclass(frozen=True)
class CostResult:
    """What the log costs.

    Attributes:
        rates: Requests per second by server, one figure a turn.
        on_to_off, naive_to_off: Median over the turns of the ratio to the log switched off.
        latency_ms: Of a put into the S3 server.
        append_us: Microseconds a record of `append`, in batches of eight.
    """

    rates: dict[str, list[float]]
    on_to_off: float
    naive_to_off: float
    append_us: float
    latency_ms: float


def run_cost(
    turn_s: float, turns: int, clients: int, workers: int, latency_s: float, say: Say
) -> CostResult:
    """Requests per second with the log off, on, and with one put_object per prediction."""
    paths = load_workload("photos-55k").paths
    generator = find_generator("wrk" if shutil.which("wrk") else "locust")
    rates: dict[str, list[float]] = {"off": [], "on": [], "naive": []}
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(run_seaweedfs())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3.client().create_bucket(Bucket=BUCKET)
        proxy = stack.enter_context(
            FaultProxy(s3.endpoint_url, latency_s / ANSWERS_PER_PUT)
        )
        archive = build_archive(folder / "store", workers, proxy.endpoint_url)
        (folder / "naive-store").mkdir()
        naive = build_naive(load_model(MODEL), folder / "naive-store")
        environ = make_environ(s3, folder / "spool")
        is_off = {**environ, "OFFPATH_PREDICTION_LOG": "off"}
        puts = {"OFFPATH_NAIVE_BUCKET": BUCKET}
        puts["OFFPATH_NAIVE_ENDPOINT"] = proxy.endpoint_url
        plan = (
            ("off", archive, is_off),
            ("on", archive, environ),
            ("naive", naive, {**environ, **puts}),
        )
        urls = {
            name: stack.enter_context(serve(folder / name, mar, env))[1]
            for name, mar, env in plan
        }

        def measure(name: str, seconds: float) -> float:
            plan = LoadPlan(urls[name], paths, clients, warm_up_s=0, seconds=seconds)
            sample = generator.run(plan, _Unwatched())
            if sample.failures:
                say(f"{name}: {sample.failures} requests failed")
            return sample.ok / sample.elapsed_s

        for name in urls:
            measure(name, WARM_UP_S)
        for turn in range(turns):
            # Each server leads in turn, so that a drift of the machine hits none more.
            names = list(urls)[turn % 3 :] + list(urls)[: turn % 3]
            for name in names:
                rates[name].append(measure(name, turn_s))
            said = ", ".join(f"{name} {rates[name][-1]:.0f}" for name in urls)
            say(f"turn {turn + 1}/{turns}: {said} requests/s")
        append_us = measure_append_us(folder / "append")
    return CostResult(
        rates=rates,
        on_to_off=_ratio(rates["on"], rates["off"]),
        naive_to_off=_ratio(rates["naive"], rates["off"]),
        append_us=append_us,
        latency_ms=latency_s * 1e3,
    )


class _Unwatched:
    """Nobody looks on while the load runs."""

    def on_window(self) -> None:
        """See `profiling.load.Watcher`."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """See `profiling.load.Watcher`."""


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(some, others))


def measure_append_us(folder: Path, batches: int = 2000, batch_size: int = 8) -> float:
    """Microseconds a record: encoding, and one write(2) a batch; the best of five passes."""
    mapping = {"uri": f"file://{folder}/out", "spool_dir": str(folder / "spool")}
    settings = PredictionLogSettings.from_mapping(mapping, {})
    log = open_prediction_log(settings, model=MODEL, version="1.0")
    passes = []
    for number in range(5):
        # Fresh ids each time: a record that is there already is not written again.
        prepared = [
            [
                _make_record(f"{number}-{batch}-{item}", batch_size)
                for item in range(batch_size)
            ]
            for batch in range(batches // 5)
        ]
        begin_s = time.perf_counter()
        for records in prepared:
            log.append(records)
        passes.append((time.perf_counter() - begin_s) / (len(prepared) * batch_size))
    log.close()
    return min(passes) * 1e6


def _make_record(event_id: str, batch_size: int) -> Record:
    stages = {"read": 0.1, "decode": 11.2, "transform": 1.1}
    return Record(
        event_id=f"{event_id:0>36}",
        inference_time=format_inference_time(),
        model=MODEL,
        version="1.0",
        payload_bytes=55_000,
        payload_hash="0" * 16,
        predictions=[(f"label {rank}", 0.5 / (rank + 1)) for rank in range(5)],
        stage_ms={**stages, "inference": 4.0, "postprocess": 0.2},
        batch_size=batch_size,
    )
