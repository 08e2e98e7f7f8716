"""`offpath batch`: classifies a folder, a list or a bucket of images, without a server."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.progress import counting_bar
from offpath.commands.shared_options import ARCHIVE
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.serving.storage import S3, Storage, explain, read_s3_options, split_name

if TYPE_CHECKING:
    from offpath.serving.offline.part_runner import Job


@dataclass(frozen=True)
class BatchOptions:
    """Arguments and options of `offpath batch`."""

    mar: Path = argument("MAR", type=ARCHIVE)
    place: str = argument("INPUT", callback=lambda _, __, text: read_place(text))
    output: str = argument("OUTPUT", callback=lambda _, __, text: read_place(text).rstrip("/"))
    max_errors: int = option(
        "Exit with 1 if more images than this have no answer.", type=click.IntRange(0), default=0
    )
    workers: int | None = option(
        "Number of processes, each with a copy of the model.  [default: one per core, or the "
        "archive's number per GPU]",
        type=click.IntRange(1, 1024),
    )
    as_json: bool = option("Print a summary as JSON.", "--json")


@click.command("batch")
@takes_options
def command(options: BatchOptions) -> None:
    """Classify all images of a folder, a list or a bucket, without a server.

    MAR is an archive of `offpath archive`, a path or a name in .offpath/model-store. INPUT is a
    folder (all images in it, recursively), s3://BUCKET/PREFIX, or a text file with a path or s3://
    name per line. Only in a list, images may have names that do not end like those of images.
    OUTPUT is a folder or s3://BUCKET/PREFIX. It gets JSON Lines with one row per image: the status
    and the answer that a server would have sent. The prediction log gets no records.

    If the command is interrupted or killed, run it again: it continues with the parts that are
    missing in OUTPUT, without a lost or doubled image. It then classifies the images that it
    found at its first start.

    Exits with 1 if more than --max-errors images have no answer. AWS_ENDPOINT_URL names an S3
    server other than AWS's.

    \b
    Examples:
      offpath batch classifier.mar photos/ results/
      offpath batch classifier.mar s3://bucket/photos s3://bucket/labels
      offpath batch classifier.mar list.txt results/ --max-errors 100 --json
    """
    if Path(options.output).is_file():
        raise WrongOption(f"OUTPUT {options.output!r} is a file; expected a folder")
    try:
        summary = classify_all(options)
    except Exception as error:
        raise explain(error, options.output) from error
    errors = ", ".join(f"{count} {kind}" for kind, count in summary["errors"].items())
    line = (
        f"{summary['images']} images in {summary['parts']} files of {options.output}, "
        f"{summary['resumed']} of them earlier; {summary['images_per_s']} per second"
    )
    click.echo(json.dumps(summary) if options.as_json else line)
    if summary["failed"] > options.max_errors:
        raise ExpectedError(
            f"{summary['failed']} of {summary['images']} images have no answer ({errors}); "
            f"their rows in {options.output} say why, and --max-errors allows more"
        )


def read_place(text: str) -> str:
    """Returns an s3:// name unchanged, and a path absolutely, so that a next start finds it again.

    Raises:
        WrongOption: an s3:// name has no bucket.
    """
    if not text.startswith(S3):
        return str(Path(text).absolute())
    if not split_name(text)[0]:
        raise WrongOption(f"{text!r} has no bucket; expected s3://BUCKET/PREFIX")
    return text


def classify_all(options: BatchOptions) -> dict[str, Any]:
    from offpath.deploy.exportable import read_exportable
    from offpath.serving.offline.manifest import count_results, find_manifest
    from offpath.serving.offline.part_runner import Job

    archive, output = read_exportable(options.mar), options.output
    gpus, cores = archive.list_gpus(), count_cores()
    workers = options.workers or len(gpus) * archive.serving.workers or cores
    s3 = read_s3_options()
    # Base64 takes a third more bytes than the image in it.
    max_bytes = 2 * archive.handler.max_payload_bytes
    threads = max(1, cores // workers)
    job = Job(output, archive.serving.batch_size, threads, gpus, s3, max_bytes)
    storage = Storage(s3)
    digest = hashlib.sha256(options.mar.read_bytes()).hexdigest()
    wanted = {"input": options.place, "archive": digest}
    with storage.hold(output):
        manifest = find_manifest(storage, output, wanted, workers)
        parts, total = manifest.parts(), len(manifest.images)
        stored = {name.rpartition("/")[2] for name in storage.list(output)}
        missing = {part: parts[part] for part in parts if part not in stored}
        left = sum(map(len, missing.values()))
        elapsed_s = 0.0
        if missing:
            elapsed_s = _run(job, workers, options.mar, missing, total)
        errors = count_results(storage, output, parts)
    answered = errors.pop(None, 0)
    return {
        "output": output,
        "images": answered + errors.total(),
        "answered": answered,
        "failed": errors.total(),
        "errors": dict(errors),
        "parts": len(parts),
        "resumed": total - left,
        "elapsed_s": round(elapsed_s, 3),
        "images_per_s": round(left / elapsed_s, 1) if missing else 0.0,
    }


def _run(
    job: Job,
    workers: int,
    mar: Path,
    parts: dict[str, list[str]],
    total: int,
) -> float:
    """Runs the parts under a bar; returns the seconds since the first was begun."""
    from offpath.serving.offline.part_runner import run_parts

    done = total - sum(map(len, parts.values()))
    first_s = math.inf
    with counting_bar("classifying") as show:
        show(done, total)

        def on_part(part: str, began_s: float) -> None:
            nonlocal done, first_s
            done, first_s = done + len(parts[part]), min(first_s, began_s)
            show(done, total)

        run_parts(job, mar, workers, parts, on_part)
    return time.monotonic() - first_s
