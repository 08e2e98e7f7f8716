"""`offpath logs`: ships the spool, shows its state, reads and compares records, finds lost ones."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.logs_report import JSON_HELP, report
from offpath.commands.progress import counting_bar
from offpath.commands.run_outputs import check_output
from offpath.commands.shared_options import FILE
from offpath.errors import ExpectedError
from offpath.handler.prediction_log.log_settings import (
    SPOOL_VARIABLE,
    default_spool_dir,
)
from offpath.serving.printable import printable

LISTED_IDS = 20
# Between two passes of `ship --watch`.
WATCH_S = 2.0
# Rows of `offpath logs status`: SinkStatus' attribute -> label.
STATUS_ROWS = {
    "segments": "segments waiting",
    "spool_bytes": "bytes waiting",
    "oldest_age_s": "oldest, seconds",
    "last_error": "last error",
    "living": "folders in use",
    "dead": "folders left behind",
    "set_aside": "files set aside",
}


@click.group()
def command() -> None:
    """Inspect, ship, read, verify and compare the prediction log.

    Workers append each answered request to a spool on disk and ship it themselves. These commands
    are for times without a worker, and for reading. Of an S3 server other than AWS's,
    AWS_ENDPOINT_URL names the address.

    \b
    Examples:
      offpath logs status
      offpath logs ship --timeout-s 60                    # after the server was stopped
      offpath logs read s3://bucket/predictions --since 2h --json | jq .status
      offpath logs read s3://bucket/predictions --since 2h --id 0b0c7a1e-...
      offpath predict photos/ --json > answered.jsonl
      offpath logs verify s3://bucket/predictions --ids answered.jsonl
      offpath logs report --a s3://bucket/predictions,since=14d,until=7d --b since=7d
    """


command.add_command(report)


SPOOL: Path = option(
    f"Spool folder of the workers; also {SPOOL_VARIABLE}.",
    type=click.Path(path_type=Path),
    envvar=SPOOL_VARIABLE,
    default=lambda: default_spool_dir(os.environ),
    show_default="~/.local/state/offpath/spool of the user who runs the workers",
)


@dataclass(frozen=True)
class StoreOptions:
    """Arguments and options of the commands that read records."""

    uri: str = argument("URI")
    since: str | None = option(
        "Earliest inference time: 2026-11-21T03:00Z, or 2h for two hours ago."
    )
    until: str | None = option("End of the inference times, itself not included.")

    def read_records(
        self, progress: Callable[[int, int], None], on_damage: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        from offpath.serving.prediction_log.reading import (
            Period,
            open_store_at,
            parse_time,
            read_records,
        )

        since, until = (parse_time(text) if text else None for text in (self.since, self.until))
        return read_records(open_store_at(self.uri), [Period(since, until)], progress, on_damage)


@command.command("ship")
@takes_options
def ship(
    spool: Path = SPOOL,
    timeout_s: float = option(
        "Seconds for which delivery to a failing sink is tried again.",
        type=click.FloatRange(min=0),
        default=30.0,
    ),
    watch: bool = option("Keep running and ship what dead workers leave, until SIGTERM or Ctrl-C."),
    as_json: bool = option(JSON_HELP, "--json"),
) -> None:
    """Deliver every segment of the spool that no living worker owns.

    Use it in a shutdown hook (after the server has stopped), as a sidecar (--watch) or from cron.
    It may run beside workers and beside other copies of itself: a lock decides who ships a segment,
    and a repeated delivery replaces the same object. The spool says where each segment goes;
    credentials come from the AWS default chain. Exits with 1 if segments could not be delivered;
    they stay in the spool.
    """
    from offpath.serving.prediction_log.shipping import ship_spool

    stopped = threading.Event()
    if watch:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
    while True:
        is_last = stopped.is_set() or not watch
        with counting_bar("shipping segments", not as_json) as progress:
            report = ship_spool(spool, timeout_s if is_last else 0.0, progress)
        if is_last or report.shipped_segments or report.errors:
            click.echo(
                json.dumps(asdict(report))
                if as_json
                else f"shipped {report.shipped_segments} segments with {report.shipped_records} "
                f"records; {report.left_segments} left; {report.living_segments} belong to living "
                "workers"
            )
        if is_last:
            break
        stopped.wait(WATCH_S)
    if report.errors:
        reasons = "; ".join(report.errors.values())
        raise ExpectedError(
            f"undelivered segments, still in {spool}: {report.left_segments}; {reasons}"
        )


@command.command("status")
@takes_options
def status(
    spool: Path = SPOOL,
    as_json: bool = option(JSON_HELP, "--json"),
) -> None:
    """Show what waits in the spool.

    For each sink: segments and bytes that wait, age of the oldest segment, why the last delivery
    failed. A folder in use belongs to a living worker; a folder left behind to a dead one, and a
    worker or `offpath logs ship` will deliver it. The first line names the spool: a server that
    runs as another user, or with OFFPATH_SPOOL_DIR, has another spool (--spool).
    """
    from offpath.serving.prediction_log.shipping import read_status

    sinks = [asdict(sink) for sink in read_status(spool)]
    if as_json:
        click.echo(json.dumps({"spool": str(spool), "sinks": sinks}))
        return
    if not sinks:
        click.echo(f"{spool} is empty; no worker has written to it")
        return
    click.echo(f"spool {spool}")
    for sink in sinks:
        click.echo(f"\n{printable(sink['uri'] or 'unknown sink (no sink.json)')}")
        for name, label in STATUS_ROWS.items():
            value = "-" if sink[name] is None else printable(str(sink[name]))
            click.echo(f"  {label:<20} {value}")


@command.command("read")
@takes_options
def read(
    store: StoreOptions,
    event_id: str | None = option("Only the record of this request id (x-request-id).", "--id"),
    parquet: Path | None = option(
        "Write the records to this file for DuckDB, pandas or Spark. Needs "
        "'torchserve-offpath[report]'.",
        type=FILE,
    ),
    as_json: bool = option(JSON_HELP, "--json"),
) -> None:
    """Print the prediction log's records under URI, in order of time.

    URI is s3://bucket/prefix or file:///folder. Prints a line with time, request id, model, status,
    best label and user, or JSON Lines with --json. With --since, only the days that can have such
    records are read.
    """
    from offpath.serving.prediction_log.reading import in_order_of_time

    check_output(parquet, "duckdb", "report")
    damage: list[str] = []
    count = 0
    with counting_bar("reading objects") as progress:
        chosen = store.read_records(progress, damage.append)
        if event_id is not None:
            chosen = (it for it in chosen if it["event_id"] == event_id)
        if parquet is not None:
            from offpath.serving.prediction_log.log_report import write_parquet

            count = write_parquet(parquet, chosen)
        elif as_json:
            for count, record in enumerate(in_order_of_time(chosen), start=1):
                click.echo(json.dumps(record, separators=(",", ":")))
        else:
            rows = [_format_record(record) for record in in_order_of_time(chosen)]
            count = len(rows)
    if parquet is not None:
        click.echo(f"{count} records: {parquet}")
    elif not as_json:
        click.echo("\n".join(rows) or "no records in this period")
    _check_damage(damage)
    if event_id is not None and not count:
        raise ExpectedError(
            f"no record of {event_id!r} under {store.uri}; a worker delivers it at the latest "
            "after segment_max_age_s"
        )


def _format_record(record: dict[str, Any]) -> str:
    label = record.get("error")
    # A handler of the user's own may log other predictions.
    with suppress(TypeError, KeyError, IndexError, ValueError):
        best = record["predictions"][0]
        label = f"{best['label']} {best['probability']:.3f}"
    model = f"{record.get('model', '')} {record.get('version', '')}"
    # 2026-11-21T03:51:42.123Z: without the year, for which 80 columns have no room.
    time = str(record["inference_time"])[5:19].replace("T", " ")
    cells = (time, record["event_id"], model, record.get("status"), label, record.get("user_id"))
    # User ids come from clients and labels from models.
    return printable("  ".join(str(cell) for cell in cells if cell is not None))


@command.command("verify")
@takes_options
def verify(
    store: StoreOptions,
    ids: IO[str] = option(
        "File with one request id per line, or the output of `offpath predict --json`; - reads "
        "standard input.",
        type=click.File("r"),
        required=True,
    ),
    as_json: bool = option(JSON_HELP, "--json"),
) -> None:
    """Check that each request id has exactly one record under URI.

    A request id is the reply header x-request-id. Lists ids without a record and ids with several,
    and exits with 1 if there are any. A worker delivers a record at the latest after
    segment_max_age_s: wait that long, or run `offpath logs ship` after the server has stopped.
    """
    from offpath.serving.prediction_log.reading import (
        compare,
        name_reply,
        parse_request_ids,
    )

    asked = parse_request_ids(ids)
    damage: list[str] = []
    with counting_bar("reading objects", not as_json) as progress:
        records = store.read_records(progress, damage.append)
        verdict = compare(map(name_reply, records), asked)
    if as_json:
        click.echo(json.dumps(asdict(verdict)))
    else:
        click.echo(
            f"{verdict.asked} ids, {verdict.records} records read: {len(verdict.missing)} missing, "
            f"{len(verdict.double)} double"
        )
        _list_ids("missing", verdict.missing)
        _list_ids("double", verdict.double)
    _check_damage(damage)
    if not verdict.is_clean:
        raise ExpectedError(
            f"{len(verdict.missing)} records missing, {len(verdict.double)} double under "
            f"{store.uri}; `offpath logs status` shows what still waits in a spool"
        )


def _check_damage(damage: list[str]) -> None:
    from offpath.serving.prediction_log.reading import describe_damage

    if damage:
        raise ExpectedError(describe_damage(damage))


def _list_ids(what: str, ids: list[str]) -> None:
    for event_id in ids[:LISTED_IDS]:
        click.echo(f"{what}: {printable(event_id)}")
    if len(ids) > LISTED_IDS:
        click.echo(f"{what}: and {len(ids) - LISTED_IDS} more (all of them with --json)")
