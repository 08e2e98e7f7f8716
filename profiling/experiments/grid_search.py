"""`offpath tune`: a grid of settings of one archive, measured in turn, and a verdict.

Variants of the run are the settings, the archive's own first. Each round starts a server for each
of them, so that rounds show how far equal settings differ.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from offpath.archive.mar_file import MANIFEST, MarFile, copy_mar, read_mar
from offpath.archive.model_config import format_model_config, load_preset, make_model_config
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.prediction_log.log_settings import OFF, URI_VARIABLE
from offpath.handler.process.host_limits import count_cores
from offpath.handler.serving_settings import RANGES, ServingSettings, name_keys
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Cell, Observer, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.load.generators import Load
from offpath.profiling.load.load_window import WindowWatcher, measure_load
from offpath.profiling.load.model_under_test import identify_archive
from offpath.profiling.load.workload import load_workload
from offpath.profiling.report.charts import Bar, BarChart
from offpath.profiling.report.document import Document, Section, describe_run, format_table
from offpath.profiling.servers.archives import host_preset
from offpath.profiling.servers.torchserve import ARCHIVE, TorchServeAdapter

NAME = "tune"
CONFIG = "model-config.yaml"
# A window lasts until it has this many replies, for a minute at most: a p95 of fewer says nothing.
MIN_REPLIES = 60
SECONDS = 4.0
# Java compiles its hot code for about ten seconds.
WARM_UP_S = {"torchserve": 10.0, "granian": 2.0}
# Estimated seconds of a start.
START_S = 4.0
# Another setting has to be this much faster in each of several rounds; equal settings differ by
# less.
MIN_GAIN, MIN_ROUNDS = 1.03, 2
# Candidates in the chart.
BARS_SHOWN = 15
COLUMNS = ("", "batch", "delay", "workers", "req/s", "range", "x", "p50", "p95", "failed")


@dataclass(frozen=True)
class Setting:
    """A point of the grid; each worker has `cores / workers` threads."""

    batch_size: int
    max_batch_delay_ms: int
    workers: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.max_batch_delay_ms} ms, {self.workers} workers"

    def put_into(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a copy of a model-config.yaml with this setting."""
        keys = name_keys(
            min_workers=self.workers,
            max_workers=self.workers,
            batch_size=self.batch_size,
            max_batch_delay_ms=self.max_batch_delay_ms,
        )
        return {**config, **keys}


def read_setting(config: Mapping[str, Any]) -> Setting:
    serving = ServingSettings.from_mapping(config)
    return Setting(serving.batch_size, serving.max_batch_delay_ms, serving.workers)


@dataclass(frozen=True)
class TuneChoices:
    """The choices of `offpath tune`; an empty list of values means the default of `make_grid`."""

    mar: Path
    p95_ms: float
    server: str
    workload: str
    clients: int
    rounds: int
    batch_sizes: Sequence[int]
    delays_ms: Sequence[int]
    workers: Sequence[int]
    command: str


def make_grid(choices: TuneChoices, own: Setting) -> list[Setting]:
    """Returns the archive's own setting, then all others of the grid.

    Raises:
        WrongOption: a value that no server takes.
    """
    cores, sizes = count_cores(), (own.batch_size // 2, own.batch_size, own.batch_size * 2)
    values = {
        # A batch above the number of closed-loop clients never fills.
        "batch_size": choices.batch_sizes or [n for n in sizes if 0 < n <= choices.clients],
        "max_batch_delay_ms": choices.delays_ms or (1, 5),
        "max_workers": choices.workers or [n for n in (cores // 2, cores) if n],
    }
    for name, given in values.items():
        low, high = RANGES[name][0] or 1, RANGES[name][1]
        if wrong := [value for value in given if not low <= value <= high]:
            raise WrongOption(f"{name} {wrong[0]}: expected whole numbers from {low} to {high}")
    grid = itertools.starmap(Setting, itertools.product(*values.values()))
    return list(dict.fromkeys([own, *grid]))


def make_server(
    choices: TuneChoices, archive: MarFile, config: Mapping[str, Any]
) -> TorchServeAdapter:
    """Returns a server of the archive with other settings; the prediction log is off."""

    def copy(changed: Mapping[str, Any], folder: Path) -> Path:
        manifest = dict(archive.manifest)
        manifest["model"] = {**manifest["model"], "configFile": CONFIG}
        files = {MANIFEST: json.dumps(manifest), CONFIG: format_model_config(changed)}
        copy_mar(archive, folder / ARCHIVE, {name: text.encode() for name, text in files.items()})
        return folder / ARCHIVE

    return TorchServeAdapter(
        NAME,
        copy,
        config,
        choices.server,
        env={URI_VARIABLE: OFF},
        batch_size=read_setting(config).batch_size,
    )


def run_tune(choices: TuneChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Measures the grid, and calls `save` with everything measured so far.

    Raises:
        ExpectedError: wrong choices, or the archive's own setting does not serve.
    """
    archive = read_mar(choices.mar)
    config = dict(archive.model_config or load_preset(host_preset()))
    make_model_config(config, {}, {})
    settings = make_grid(choices, read_setting(config))
    workload = load_workload(choices.workload, observer.on_step)
    load = Load(seconds=SECONDS, warm_up_s=WARM_UP_S[choices.server], min_replies=MIN_REPLIES)
    run = Run(
        NAME,
        choices.command,
        {
            "archive": identify_archive(choices.mar),
            "server": choices.server,
            "clients": choices.clients,
            **asdict(load),
        },
        variants={str(setting): asdict(setting) for setting in settings},
        workloads={workload.name: workload.facts},
        details={"config": config, "p95_ms": choices.p95_ms},
    )
    turns = list(itertools.product(range(choices.rounds), settings))
    minutes = len(turns) * (START_S + load.warm_up_s + SECONDS) / 60
    observer.on_step(f"{len(settings)} settings, about {minutes:.0f} min")
    with work_folder(lambda: bool(run.failures)) as folder:
        for number, (round_, setting) in enumerate(turns):
            observer.on_progress(number, len(turns))
            if run.has_failed(str(setting)):
                continue
            observer.on_step(f"round {round_ + 1}/{choices.rounds}: {setting}")
            server = make_server(choices, archive, setting.put_into(config))
            # Where the archive itself does not serve, nothing else would.
            is_own = setting == settings[0]
            with nullcontext() if is_own else run.leaving_out(round_, str(setting), observer):
                store = folder / f"{round_}-{number}"
                server.prepare(store)
                with server.running(store) as running:
                    window = load.for_window(running.predict_url, workload.paths, choices.clients)
                    watcher = WindowWatcher(str(setting), running, observer)
                    figures = measure_load(watcher, window)
                run.add(round_, str(setting), Cell(workload.name, choices.clients), figures)
            save(run)
    return run


class Outcome(NamedTuple):
    """The figures of a setting over all rounds.

    Attributes:
        rate, low, high: good replies per second, median and extremes of the rounds.
        ratios: rate by that of the archive's own setting, one per round.
        p50_ms, p95_ms: of the 200s of all rounds; NaN without any.
        failures: replies other than 200.
    """

    setting: Setting
    rate: float
    low: float
    high: float
    ratios: list[float]
    p50_ms: float
    p95_ms: float
    failures: int

    @property
    def is_faster(self) -> bool:
        return len(self.ratios) >= MIN_ROUNDS and min(self.ratios) >= MIN_GAIN


class Verdict(NamedTuple):
    """The winner, None where nothing was within the bound, and one or two sentences about it."""

    winner: Setting | None
    text: str


@dataclass(frozen=True)
class TuneResult:
    """A finished search: its outcomes, those within the bound first, by rate."""

    run: Run
    own: Setting
    outcomes: list[Outcome]
    verdict: Verdict


def read_result(run: Run) -> TuneResult:
    summary, bound_ms = Summary(run), run.details["p95_ms"]
    own = Setting(**next(iter(run.variants.values())))
    outcomes = []
    for name, facts in run.variants.items():
        for cell in summary.cells():
            rate = summary.spread(name, cell, "rate")
            if rate is None or run.has_failed(name):
                continue
            p50_ms, p95_ms = (
                summary.value(name, cell, f"{LATENCY}.p{percent}") or math.nan
                for percent in (50, 95)
            )
            failures = sum(summary.failures(name, cell).values())
            ratios = summary.ratios(name, str(own), cell)
            one = Outcome(
                Setting(**facts), rate.median, rate.low, rate.high, ratios, p50_ms, p95_ms, failures
            )
            outcomes.append(one)
    outcomes.sort(key=lambda one: (not is_within(one, bound_ms), -one.rate))
    return TuneResult(run, own, outcomes, judge(outcomes, own, bound_ms))


def is_within(one: Outcome, bound_ms: float) -> bool:
    """Tells whether every reply was good and their p95 is within the bound."""
    return not one.failures and one.p95_ms <= bound_ms


def judge(outcomes: Sequence[Outcome], own: Setting, bound_ms: float) -> Verdict:
    """Compares the outcomes with that of the archive's own setting."""
    within = [one for one in outcomes if is_within(one, bound_ms)]
    if not within:
        best = min(outcomes, key=lambda one: (one.failures, one.p95_ms), default=None)
        closest = f": the best is {best.setting}, p95 {best.p95_ms:.0f} ms" if best else ""
        return Verdict(
            None,
            f"no setting answers everything with 95 % within {bound_ms:g} ms{closest}; allow"
            " more, or send fewer requests at a time",
        )
    if own not in [one.setting for one in within]:
        text = f"{within[0].setting}: the archive's own setting is not within {bound_ms:g} ms."
        return Verdict(within[0].setting, text)
    if faster := [one for one in within if one.is_faster]:
        best = faster[0]
        return Verdict(
            best.setting,
            f"{best.setting}: {median(best.ratios):.2f} times the rate of the archive's own"
            f" setting ({min(best.ratios):.2f} to {max(best.ratios):.2f} in"
            f" {len(best.ratios)} rounds).",
        )
    gain = f"{MIN_GAIN - 1:.0%}".replace("%", " %")
    return Verdict(
        own,
        f"The archive's own setting stays: within the bound, no other was {gain} faster in each"
        f" of at least {MIN_ROUNDS} rounds.",
    )


def document_of(run: Run, _: str | None = None) -> Document:
    result, bound_ms = read_result(run), run.details["p95_ms"]
    rows = [
        [
            note(result, one, bound_ms),
            *map(str, one.setting.__dict__.values()),
            f"{one.rate:.1f}",
            f"{one.low:.0f}-{one.high:.0f}",
            f"{median(one.ratios):.2f}" if one.ratios else "",
            f"{one.p50_ms:.0f}",
            f"{one.p95_ms:.0f}",
            str(one.failures),
        ]
        for one in result.outcomes
    ]
    bars = [
        Bar(
            str(one.setting),
            one.rate,
            f"{one.rate:.0f}, p95 {one.p95_ms:.0f} ms",
            one.setting == result.verdict.winner,
            one.low,
            one.high,
        )
        for one in result.outcomes[:BARS_SHOWN]
    ]
    charts = [BarChart("Settings", "requests per second", bars)]
    title = (
        f"{run.rounds} rounds in turn; times in ms; x: rate by that of the archive's own setting"
    )
    table = format_table(COLUMNS, rows, title=title)
    section = Section("Settings", table, charts, note=result.verdict.text)
    doubts = find_doubts(run, MIN_REPLIES)
    return describe_run(run, Document("Tuning", [section], warnings=doubts, headline=charts))


def note(result: TuneResult, one: Outcome, bound_ms: float) -> str:
    notes = {
        "own": one.setting == result.own,
        "best": one.setting == result.verdict.winner,
        "slow": not one.failures and not is_within(one, bound_ms),
    }
    return ", ".join(name for name, applies in notes.items() if applies)


def write_preset(path: Path, result: TuneResult) -> None:
    """Writes the winner as a preset with its origin; raises ExpectedError if nothing won."""
    run, winner = result.run, result.verdict.winner
    if winner is None:
        raise ExpectedError(result.verdict.text)
    host = f"{run.host['cores']} x {run.host['cpu']}"
    origin = [f"{run.started_at}: {run.command}", result.verdict.text, f"on {host}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    comments = "".join(f"# {line}\n" for line in origin)
    path.write_text(comments + format_model_config(winner.put_into(run.details["config"])), "utf-8")
