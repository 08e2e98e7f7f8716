"""The prediction log's trials under a real TorchServe: kills, an outage, and what it costs.

Everything is real: TorchServe, SIGKILL, S3's protocol over HTTP. Comparisons take turns in one run,
because only ratios of one run mean something on a machine that does other things.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handler.prediction_log import open_prediction_log
from handler.prediction_log.record import Record, format_inference_time
from handler.prediction_log.settings import PredictionLogSettings
from offpath.errors import ExpectedError
from offpath.log_reading import Period, compare, read_records
from offpath.log_store import open_store_at
from offpath.processes import find_session_members
from offpath.torchserve import ServerSettings, TorchServe
from profiling.log_clients import Answers, Clients
from profiling.model_under_test import ModelUnderTest, load_model
from profiling.s3_faults import OUTAGES, PASS, FaultProxy
from profiling.s3_servers import S3Server, run_seaweedfs
from profiling.servers import archives
from profiling.workload import load_workload

MODEL = "near-free"
BUCKET = "offpath-trial"
URI = f"s3://{BUCKET}/predictions"
DRAIN_TIMEOUT_S = 120.0
EVENTS = ("kill a worker", "kill the server", "scale down and up")

Say = Callable[[str], None]


@dataclass(frozen=True)
class RoundsResult:
    """Kills survived.

    Attributes:
        rounds: By kind of event.
        answered: Requests answered 200.
        records: Records in the bucket.
        unanswered: Requests without a 200 (their worker was killed); they may have a record.
        lost, double: Request ids.
    """

    rounds: Mapping[str, int]
    answered: int
    records: int
    unanswered: int
    lost: list[str]
    double: list[str]


@dataclass(frozen=True)
class OutageResult:
    """An outage under load.

    Attributes:
        failed: Requests without a 200 while the log was on.
        p99_ms: (log off, log on) by stage.
        answered, lost, double: Of the log that was on, after recovery.
        recovery_s: From the end of the outage until the last record had arrived.
    """

    failed: int
    p99_ms: dict[str, tuple[float, float]]
    ratio_p99: float
    answered: int
    lost: list[str]
    double: list[str]
    recovery_s: float


@dataclass(frozen=True)
class CostResult:
    """What the log costs.

    Attributes:
        rates: Requests per second by server, one figure a turn.
        on_to_off, naive_to_off: Median over the turns of the ratio to the log switched off.
        append_us: Microseconds a record of `append`, in batches of eight.
    """

    rates: dict[str, list[float]]
    on_to_off: float
    naive_to_off: float
    append_us: float
    latency_ms: float = 30.0
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(
    folder: Path, archive: Path, env: Mapping[str, str]
) -> Iterator[tuple[TorchServe, str]]:
    """A TorchServe with one archive; (server, URL to post to)."""
    server = TorchServe(make_server_settings(folder, archive, env))
    with server:
        yield server, predict_url(server)


def make_server_settings(
    folder: Path, archive: Path, env: Mapping[str, str]
) -> ServerSettings:
    """Free ports, logs in `folder`."""
    return ServerSettings(
        model_store=archive.parent,
        models=(archive.name,),
        inference_port=0,
        management_port=0,
        metrics_port=0,
        log_dir=folder / "logs",
        env=env,
    )


def predict_url(server: TorchServe) -> str:
    """Where pictures are posted."""
    return f"{server.inference_url}/predictions/{archives.NAME}"


def build_archive(folder: Path, workers: int, endpoint_url: str) -> Path:
    """The near-free model's archive with a log of short segments."""
    model = load_model(MODEL)
    config = archives.offpath_config(model, workers)
    config["handler"]["prediction_log"] = {
        "uri": URI,
        "segment_max_age_s": 2,
        "retry_max_s": 5,
        "s3": {"endpoint_url": endpoint_url, "region": "us-east-1", "timeout_s": 10},
    }
    folder.mkdir(parents=True)
    return archives.build_offpath(model, config, folder)


def build_naive(folder: Path) -> Path:
    """The naive handler's archive; no YAML, so TorchServe's own batch settings."""
    model = load_model(MODEL)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="offpath-trial-") as scratch:
        command = _naive_command(model, Path(scratch), folder)
        done = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": scratch},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise ExpectedError(f"torch-model-archiver failed:\n{done.stderr.strip()}")
    return folder / f"{archives.NAME}.mar"


def _naive_command(model: ModelUnderTest, scratch: Path, folder: Path) -> list[str]:
    weights, labels = scratch / "weights.pt", scratch / "index_to_name.json"
    model.save_weights(weights)
    names = {str(index): ["", name] for index, name in enumerate(model.labels)}
    labels.write_text(json.dumps(names), encoding="utf-8")
    config = scratch / "naive_config.json"
    config.write_bytes((archives.BASELINES_DIR / config.name).read_bytes())
    return [
        *(sys.executable, "-m", "model_archiver.model_packaging"),
        *("--model-name", archives.NAME, "--version", "1.0"),
        *("--model-file", str(model.model_file), "--serialized-file", str(weights)),
        *("--handler", str(archives.BASELINES_DIR / "naive_handler.py")),
        *("--extra-files", f"{labels},{config}"),
        *("--export-path", str(folder), "--force"),
    ]


def make_environ(s3: S3Server, spool: Path) -> dict[str, str]:
    """Environment of a server whose log is on."""
    return {**s3.environ, "OFFPATH_SPOOL_DIR": str(spool)}


def drain(s3: S3Server, spool: Path) -> None:
    """`offpath logs ship`, in a process of its own as an operator would."""
    command = [sys.executable, "-m", "offpath", "logs", "ship", "--spool", str(spool)]
    done = subprocess.run(
        command, env={**os.environ, **s3.environ}, capture_output=True, text=True
    )
    if done.returncode:
        raise ExpectedError(f"offpath logs ship failed: {done.stderr.strip()}")


@contextlib.contextmanager
def credentials(s3: S3Server) -> Iterator[None]:
    """The server's credentials in this process's environment."""
    before = dict(os.environ)
    os.environ.update(s3.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def read_event_ids(s3: S3Server) -> list[str]:
    """Event ids of all records in the bucket."""
    with credentials(s3):
        store = open_store_at(URI, s3.endpoint_url, "us-east-1")
        return [str(record["event_id"]) for record in read_records(store, Period())]


def run_rounds(
    rounds: int, clients: int, workers: int, seed: int, say: Say
) -> RoundsResult:
    """Load, a kill at a random moment, restart; at the end drain and compare."""
    draw = random.Random(seed)
    bodies = load_workload("photos-55k").read()
    answers = Answers()
    kinds = [EVENTS[number % len(EVENTS)] for number in range(rounds)]
    draw.shuffle(kinds)
    with run_seaweedfs() as s3, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        s3.client().create_bucket(Bucket=BUCKET)
        archive = build_archive(folder / "store", workers, s3.endpoint_url)
        environ = make_environ(s3, folder / "spool")
        settings = make_server_settings(folder, archive, environ)
        server = TorchServe(settings)
        try:
            for number, kind in enumerate(kinds, start=1):
                if not server.is_running():
                    server = TorchServe(settings)
                    server.start()
                server.wait_until_ready()
                one = _run_round(server, kind, bodies, clients, workers, draw)
                answers.add(one)
                say(f"round {number}/{rounds}: {kind}; {len(one.request_ids)} answered")
        finally:
            server.stop()
        drain(s3, folder / "spool")
        event_ids = read_event_ids(s3)
    verdict = compare(event_ids, set(answers.request_ids))
    return RoundsResult(
        rounds={kind: kinds.count(kind) for kind in EVENTS},
        answered=len(answers.request_ids),
        records=verdict.records,
        unanswered=answers.failed,
        lost=verdict.missing,
        double=verdict.double,
    )


def _run_round(
    server: TorchServe,
    kind: str,
    bodies: list[bytes],
    clients: int,
    workers: int,
    draw: random.Random,
) -> Answers:
    with Clients(predict_url(server), bodies, clients) as load:
        time.sleep(draw.uniform(0.5, 3.0))
        if kind == "kill a worker":
            os.kill(draw.choice(server.worker_pids()), signal.SIGKILL)
        elif kind == "kill the server":
            _kill_tree(server)
        else:
            with server.management() as management:
                management.scale(archives.NAME, 0)
                management.scale(archives.NAME, workers)
        time.sleep(draw.uniform(0.0, 1.0))
    if kind == "kill the server":
        # What SIGKILL leaves behind (temporary files) is this process's to remove.
        server.stop()
    return load.answers


def _kill_tree(server: TorchServe) -> None:
    """SIGKILL for Java and its workers at once, as an out-of-memory killer or a node's loss does."""
    for process in find_session_members(server.java_pid):
        process.kill()


def run_outage(
    stage_s: float, clients: int, workers: int, turns: int, say: Say
) -> OutageResult:
    """Four kinds of outage in a row under load, taking turns with a server whose log is off."""
    bodies = load_workload("photos-55k").read()
    off, on = Answers(), Answers()
    by_stage: dict[str, tuple[float, float]] = {}
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(run_seaweedfs())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3.client().create_bucket(Bucket=BUCKET)
        proxy = stack.enter_context(FaultProxy(s3.endpoint_url))
        archive = build_archive(folder / "store", workers, proxy.endpoint_url)
        environ = make_environ(s3, folder / "spool")
        is_off = {**environ, "OFFPATH_PREDICTION_LOG": "off"}
        _, off_url = stack.enter_context(serve(folder / "off", archive, is_off))
        _, on_url = stack.enter_context(serve(folder / "on", archive, environ))
        for url in (off_url, on_url):
            _load(url, bodies, clients, 3.0)
        # Warm-up of both is not compared, but its records are checked.
        for stage in OUTAGES:
            proxy.set_mode(stage)
            stage_off, stage_on = Answers(), Answers()
            for _ in range(turns):
                stage_off.add(_load(off_url, bodies, clients, stage_s / turns))
                stage_on.add(_load(on_url, bodies, clients, stage_s / turns))
            by_stage[stage] = (p99(stage_off), p99(stage_on))
            say(
                f"{stage}: p99 {by_stage[stage][0]:.0f} ms off, {by_stage[stage][1]:.0f} ms on; "
                f"{stage_on.failed} failed"
            )
            off.add(stage_off)
            on.add(stage_on)
        proxy.set_mode(PASS)
        begin_s = time.monotonic()
        _wait_for_records(s3, set(on.request_ids))
        recovery_s = time.monotonic() - begin_s
        event_ids = read_event_ids(s3)
    verdict = compare(event_ids, set(on.request_ids))
    return OutageResult(
        failed=on.failed,
        p99_ms=by_stage,
        ratio_p99=p99(on) / p99(off),
        answered=len(on.request_ids),
        lost=verdict.missing,
        double=verdict.double,
        recovery_s=recovery_s,
    )


def _load(url: str, bodies: list[bytes], clients: int, seconds: float) -> Answers:
    with Clients(url, bodies, clients) as load:
        time.sleep(seconds)
    return load.answers


def p99(answers: Answers) -> float:
    """99th percentile of the latencies, ms."""
    if len(answers.latencies_ms) < 2:
        raise ExpectedError("fewer than two requests were answered: nothing to compare")
    return statistics.quantiles(answers.latencies_ms, n=100)[98]


def _wait_for_records(s3: S3Server, request_ids: set[str]) -> None:
    deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if not request_ids - set(read_event_ids(s3)):
            return
        time.sleep(1.0)


def run_cost(
    turn_s: float, turns: int, clients: int, workers: int, latency_s: float, say: Say
) -> CostResult:
    """Requests per second with the log off, on, and with one put_object per prediction."""
    bodies = load_workload("photos-55k").read()
    rates: dict[str, list[float]] = {"off": [], "on": [], "naive": []}
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(run_seaweedfs())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3.client().create_bucket(Bucket=BUCKET)
        proxy = stack.enter_context(FaultProxy(s3.endpoint_url, latency_s))
        archive = build_archive(folder / "store", workers, proxy.endpoint_url)
        naive = build_naive(folder / "naive-store")
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
        for url in urls.values():
            _load(url, bodies, clients, 3.0)
        for turn in range(turns):
            # Each server leads in turn, so that a drift of the machine hits none more.
            names = list(urls)[turn % 3 :] + list(urls)[: turn % 3]
            for name in names:
                answers = _load(urls[name], bodies, clients, turn_s)
                rates[name].append(len(answers.request_ids) / turn_s)
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


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(some, others))


def measure_append_us(folder: Path, batches: int = 2000, batch_size: int = 8) -> float:
    """Microseconds a record: encoding, and one write(2) a batch; the best of five passes."""
    mapping = {"uri": f"file://{folder}/out", "spool_dir": str(folder / "spool")}
    settings = PredictionLogSettings.from_mapping(mapping, {})
    log = open_prediction_log(settings, model=MODEL, version="1.0")
    batch = [_make_record(number, batch_size) for number in range(batch_size)]
    passes = []
    for _ in range(5):
        begin_s = time.perf_counter()
        for _ in range(batches // 5):
            log.append(batch)
        passes.append((time.perf_counter() - begin_s) / (batches // 5 * batch_size))
    log.close()
    return min(passes) * 1e6


def _make_record(number: int, batch_size: int) -> Record:
    stages: dict[str, Any] = {"read": 0.1, "decode": 11.2, "transform": 1.1}
    return Record(
        event_id=f"00000000-0000-0000-0000-{number:012d}",
        inference_time=format_inference_time(),
        model=MODEL,
        version="1.0",
        payload_bytes=55_000,
        payload_hash="0" * 16,
        predictions=[(f"label {rank}", 0.5 / (rank + 1)) for rank in range(5)],
        stage_ms={**stages, "inference": 4.0, "postprocess": 0.2},
        batch_size=batch_size,
    )
