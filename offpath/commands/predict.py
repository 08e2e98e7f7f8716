"""`offpath predict`: sends image files to a running server and shows its answers."""

from __future__ import annotations

import glob
import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offpath.commands.progress import counting_bar
from offpath.commands.shared_options import json_option, read_settings, settings_option
from offpath.commands.url_option import check_token, check_url
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.config import INPUT_SETTINGS, HandlerConfig
from offpath.handler.errors import ConfigError, ItemError
from offpath.handler.image import SUFFIXES
from offpath.handler.image.geometry import InputGeometry
from offpath.serving.client import Client, ModelNotNamed, Prediction, ServerUnreachable
from offpath.serving.printable import printable


@click.command("predict")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@click.option(
    "--url",
    "urls",
    multiple=True,
    default=("http://127.0.0.1:8080",),
    show_default=True,
    help="The server's inference address. Can be repeated: with --retries, the next address is "
    "tried when one fails.",
)
@click.option(
    "--retries",
    default=0,
    show_default=True,
    type=click.IntRange(0, 20),
    help="How often to try again after no answer, or after 429, 500, 502, 503 or 504.",
)
@click.option(
    "--model",
    help="Name of the model.  [default: the server's only model]",
)
@click.option(
    "--thin",
    is_flag=True,
    help="Decode and resize on this machine, and send uint8 pixels.",
)
@settings_option(
    "With --thin: a setting of the model's input, with the value that its archive has: image_size, "
    "resize_size, resize, interpolation, channels, channel_order or fill."
)
@click.option(
    "--clients",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Number of concurrent requests.",
)
@click.option("--token", help="Inference token, if the server asks for one.")
@click.option(
    "--cacert",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificate authority to trust, PEM, for a server whose certificate is not public.",
)
@json_option("Print one JSON object per line, with all labels.")
def command(images: tuple[str, ...], **options: Any) -> None:
    """Classify images with a running server.

    IMAGE is a file, a folder (all images in it, recursively) or a quoted glob. Exits with 1 if any
    image was not classified.

    \b
    Examples:
      offpath predict photo.jpg
      offpath predict photos/ --clients 8 --json > predictions.jsonl
      offpath predict 'photos/*.png' --thin
    """
    geometry = read_input_geometry(options["settings"])
    check_token(options["token"])
    paths = list(find_images(images))
    results = _send_all(paths, geometry, options)
    failed = 0
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for head in ("image", "label", "p", "ms", "server ms by stage"):
        table.add_column(head, no_wrap=head in ("p", "ms"), overflow="fold")
    for path, outcome in results:
        failed += not (isinstance(outcome, Prediction) and outcome.is_ok)
        if options["as_json"]:
            click.echo(json.dumps(_as_json(path, outcome)))
        else:
            _add_row(table, path, outcome)
    if not options["as_json"]:
        # Without markup, because a file name or a label may hold brackets.
        Console(markup=False).print(table)
        # A custom handler may answer in another form. A column would break it into lines.
        for path, outcome in results:
            if isinstance(outcome, Prediction) and outcome.is_ok and not outcome.labels:
                click.echo(printable(f"{path}: {outcome.body.decode('utf-8', 'replace')}"))
    if failed:
        raise ExpectedError(f"{failed} of {len(paths)} images were not classified")


def read_input_geometry(texts: tuple[str, ...]) -> InputGeometry:
    """Reads the shape that a thin client gives to each image.

    Raises:
        WrongOption: a setting is not one of the model's input, or has a wrong value.
    """
    settings = read_settings(texts)
    for key in settings:
        if key not in INPUT_SETTINGS:
            raise WrongOption(
                f"--set {key}: this is not a setting of the model's input; accepted: "
                f"{', '.join(INPUT_SETTINGS)}"
            )
    # The server normalises; these values only complete the section.
    settings = {"mean": 0.5, "std": 0.5, **settings}
    try:
        return HandlerConfig.from_mapping(settings, environ={}).input_geometry
    except ConfigError as error:
        raise WrongOption(str(error)) from error


def find_images(patterns: tuple[str, ...]) -> Iterator[Path]:
    """Yields the files that paths, folders and globs name, in a stable order.

    Raises:
        WrongOption: a name matches nothing.
    """
    for pattern in patterns:
        path = Path(pattern)
        if path.is_file():
            yield path
            continue
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        else:
            found = sorted(Path(p) for p in glob.glob(pattern, recursive=True) if Path(p).is_file())
        if not found:
            raise WrongOption(f"{pattern!r}: no such file, or a folder without images")
        yield from found


def read_authority(file: str) -> ssl.SSLContext:
    """Returns a context that trusts the certificates of a PEM file, and no others.

    Raises:
        WrongOption: the file has no certificate.
    """
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise WrongOption(f"--cacert {file}: this is not a certificate in PEM: {error}") from error


def format_hint(failure: str) -> str:
    """Returns what to do after a failed connection; "" if the failure says it."""
    if "CERTIFICATE_VERIFY_FAILED" not in failure:
        return "; is `offpath serve` running?"
    # OpenSSL's words for an authority that it does not know.
    is_unknown = "self-signed" in failure or "local issuer" in failure
    return "; for a private certificate authority, pass --cacert" if is_unknown else ""


def _send_all(
    paths: list[Path], geometry: InputGeometry, options: dict[str, Any]
) -> list[tuple[Path, Prediction | str]]:
    """Sends all images; a text instead of a prediction says why an image was not sent."""
    headers = {"authorization": f"Bearer {options['token']}"} if options["token"] else None
    urls = [check_url("--url", url) for url in options["urls"]]
    verify = read_authority(options["cacert"]) if options["cacert"] else True
    with Client(
        urls,
        options["model"],
        options["thin"],
        geometry,
        headers=headers,
        verify=verify,
        retries=options["retries"],
    ) as client:

        def send(path: Path) -> Prediction | str:
            try:
                return client.try_predict(path)
            except ItemError as error:
                return error.message
            except OSError as error:
                return str(error)

        outcomes = []
        with (
            ThreadPoolExecutor(options["clients"]) as pool,
            counting_bar("predicting") as progress,
        ):
            try:
                for outcome in pool.map(send, paths):
                    outcomes.append(outcome)
                    progress(len(outcomes), len(paths))
            except ServerUnreachable as error:
                pool.shutdown(cancel_futures=True)
                raise ExpectedError(f"{error}{format_hint(str(error))}") from error
            except ModelNotNamed as error:
                pool.shutdown(cancel_futures=True)
                raise WrongOption(f"{error} (pass --model)") from error
    return list(zip(paths, outcomes))


def _as_json(path: Path, outcome: Prediction | str) -> dict[str, Any]:
    if isinstance(outcome, str):
        return {"image": str(path), "status": None, "error": outcome}
    return {
        "image": str(path),
        "status": outcome.status,
        "labels": dict(outcome.labels),
        "type": outcome.error_type,
        "error": outcome.error,
        "latency_ms": round(outcome.latency_ms, 2),
        "server_timing_ms": outcome.server_timing,
        "request_id": outcome.request_id,
        "tries": outcome.tries,
    }


def _add_row(table: Table, path: Path, outcome: Prediction | str) -> None:
    if isinstance(outcome, str):
        table.add_row(str(path), f"not sent: {outcome}", "", "", "")
        return
    if not outcome.is_ok:
        table.add_row(
            str(path),
            f"{outcome.status}: {outcome.error}",
            "",
            f"{outcome.latency_ms:.1f}",
            "",
        )
        return
    label, score = outcome.labels[0] if outcome.labels else ("(below)", None)
    stages = ", ".join(
        f"{name} {ms:.1f}" for name, ms in outcome.server_timing.items() if ms >= 0.05
    )
    shown = "" if score is None else f"{score:.3f}"
    table.add_row(str(path), label, shown, f"{outcome.latency_ms:.1f}", stages)
