"""`offpath batch`: classifies a folder, a list or a bucket of pictures, without a server."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.bar import counting_bar
from offpath.commands.shared_options import json_option
from offpath.handler.errors import ExpectedError, MissingPackage, WrongOption
from offpath.handler.prediction_log.log_settings import S3Options
from offpath.handler.process.host_limits import count_cores
from offpath.handler.process.lazy_imports import is_installed
from offpath.serving.log_tools.objects import explain
from offpath.serving.offline.storage import S3, Storage, split_name

if TYPE_CHECKING:
    from offpath.deploy.exportable import Exportable
    from offpath.serving.offline.part_runner import Job
    from offpath.serving.offline.processes import OnPart, Parts


@click.command("batch")
@click.argument("mar", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("place", metavar="INPUT")
@click.argument("output")
@click.option(
    "--format",
    type=click.Choice(("jsonl", "parquet")),
    default="jsonl",
    show_default=True,
    help="Format of the results. Parquet needs the extra `report`.",
)
@click.option(
    "--max-errors",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Exit with 1 if more pictures than this have no answer.",
)
@click.option(
    "--all-files",
    is_flag=True,
    help="Also take files whose names do not end like those of pictures. A list is always taken "
    "whole.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Number of processes, each with a copy of the model.  [default: one per core, or the "
    "archive's number per GPU]",
)
@click.option(
    "--ray",
    "is_on_ray",
    is_flag=True,
    help="Run on the Ray cluster of RAY_ADDRESS. Its nodes need offpath, and must reach INPUT and "
    "OUTPUT under the same names.",
)
@click.option("--endpoint-url", help="URL of an S3 server other than AWS.")
@click.option("--region", help="Region of the buckets.")
@json_option("Print a summary as JSON.")
def command(mar: Path, place: str, output: str, **options: Any) -> None:
    """Classify all pictures of a folder, a list or a bucket, without a server.

    MAR is an archive of `offpath archive`. INPUT is a folder (all pictures in it, recursively),
    s3://BUCKET/PREFIX, or a text file with a path or s3:// name per line. OUTPUT is a folder or
    s3://BUCKET/PREFIX. It gets files with one row per picture: the status and the answer that a
    server would have sent. The prediction log gets no records.

    If the command is interrupted or killed, run it again: it continues with the parts that are
    missing in OUTPUT, without a lost or doubled picture. It then classifies the pictures that it
    found at its first start.

    Exits with 1 if more than --max-errors pictures have no answer.

    \b
    Examples:
      offpath batch classifier.mar photos/ results/
      offpath batch classifier.mar s3://bucket/photos s3://bucket/labels --format parquet
      offpath batch classifier.mar list.txt results/ --max-errors 100 --json
    """
    if options["format"] == "parquet" and not is_installed("duckdb"):
        raise MissingPackage("duckdb", "report")
    for name in (place, output):
        if name.startswith(S3) and not split_name(name)[0]:
            raise WrongOption(f"{name!r} has no bucket; expected s3://BUCKET/PREFIX")
    output = output.rstrip("/")
    if not output.startswith(S3):
        output = str(Path(output).absolute())
        if Path(output).is_file():
            raise WrongOption(f"OUTPUT {output!r} is a file; expected a folder")
    try:
        summary = classify_all(mar, place, output, options)
    except Exception as error:
        raise explain(error, output) from error
    errors = ", ".join(f"{count} {kind}" for kind, count in summary["errors"].items())
    line = (
        f"{summary['pictures']} pictures in {summary['parts']} files of {output}, "
        f"{summary['resumed']} of them earlier; {summary['pictures_per_s']} per second"
    )
    click.echo(json.dumps(summary) if options["as_json"] else line)
    if summary["failed"] > options["max_errors"]:
        raise ExpectedError(
            f"{summary['failed']} of {summary['pictures']} pictures have no answer ({errors}); "
            f"their rows in {output} say why, and --max-errors allows more"
        )


def classify_all(
    mar: Path, place: str, output: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Classifies what is missing in OUTPUT; returns the summary that --json prints."""
    from offpath.deploy.exportable import read_exportable
    from offpath.serving.offline import manifest as manifests
    from offpath.serving.offline.part_runner import Job

    archive = read_exportable(mar)
    s3 = S3Options(options["region"], options["endpoint_url"])
    storage = Storage(s3)
    workers = options["workers"] or count_workers(archive)
    # Of a relative path, another folder of the next start would make another place.
    absolute = place if place.startswith(S3) else str(Path(place).absolute())
    digest = hashlib.sha256(mar.read_bytes()).hexdigest()
    wanted = {"input": absolute, "archive": digest, "format": options["format"]}
    manifest = manifests.open_manifest(storage, output, **wanted)
    if manifest is None:
        pictures = manifests.list_pictures(storage, absolute, options["all_files"])
        size = manifests.choose_part_size(len(pictures), workers)
        manifest = manifests.Manifest(**wanted, part_size=size, pictures=pictures)
        manifests.write_manifest(storage, output, manifest)
    parts, total = manifest.parts(), len(manifest.pictures)
    stored = {name.rpartition("/")[2] for name in storage.list(output)}
    missing = {part: parts[part] for part in parts if part not in stored}
    done = resumed = total - sum(map(len, missing.values()))
    began: list[float] = []
    threads = 0
    with counting_bar("classifying", has_rate=True) as show:

        def on_part(part: str, began_s: float, its_threads: int) -> None:
            nonlocal done, threads
            done, threads = done + len(parts[part]), its_threads
            began.append(began_s)
            show(done, total)

        job = Job(
            output,
            archive.batch_size,
            1 if options["is_on_ray"] else max(1, count_cores() // workers),
            archive.server.get("deviceType"),
            s3,
        )
        show(done, total)
        if missing and options["is_on_ray"]:
            from offpath.deploy.ray.offline import run_on_ray

            run_on_ray(job, archive, options["workers"], missing, on_part)
        elif missing:
            run_here(job, mar, workers, missing, on_part)
    elapsed_s = time.monotonic() - min(began) if began else 0.0
    errors = manifests.count_results(storage, output, parts)
    answered = errors.pop(None, 0)
    return {
        "output": output,
        "pictures": answered + errors.total(),
        "answered": answered,
        "failed": errors.total(),
        "errors": dict(errors),
        "parts": len(parts),
        "resumed": resumed,
        "elapsed_s": round(elapsed_s, 3),
        "pictures_per_s": round((done - resumed) / elapsed_s, 1) if began else 0.0,
        "threads_per_worker": threads,
    }


def run_here(job: Job, mar: Path, workers: int, parts: Parts, on_part: OnPart) -> None:
    """Runs the parts in processes of this machine."""
    from offpath.archive.mar_file import read_mar, unpack_mar
    from offpath.serving.offline.processes import run_parts

    with tempfile.TemporaryDirectory(prefix="offpath-batch-") as folder:
        unpack_mar(read_mar(mar), Path(folder))
        run_parts(job, Path(folder), workers, parts, on_part)


def count_workers(archive: Exportable) -> int:
    """Returns one worker per core, or the archive's number per GPU."""
    if archive.wants_gpu:
        import torch

        if gpus := torch.cuda.device_count():
            return gpus * archive.workers
    return count_cores()
