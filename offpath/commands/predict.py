"""`offpath predict`: sends image files to a running server and shows its answers."""

from __future__ import annotations

import glob
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.progress import counting_bar
from offpath.commands.url_option import check_token, check_url
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.image import SUFFIXES
from offpath.serving.client import Client, ModelNotNamed, Prediction, ServerUnreachable
from offpath.serving.printable import printable

# Characters of a label, an error or the stages, which come from a server.
MAX_TEXT = 500


@dataclass(frozen=True)
class PredictOptions:
    """Arguments and options of `offpath predict`."""

    images: tuple[str, ...] = argument("IMAGE...", nargs=-1, required=True)
    url: str = option("The server's inference address.", default="http://127.0.0.1:8080")
    model: str | None = option("Name of the model.  [default: the server's only model]")
    thin: bool = option(
        "Decode and resize on this machine as the model's archive says, and send uint8 pixels."
    )
    clients: int = option("Number of concurrent requests.", type=click.IntRange(1, 256), default=1)
    token: str | None = option("Inference token, if the server asks for one.")
    cacert: str | None = option(
        "Certificate authority to trust, PEM, for a server whose certificate is not public.",
        type=click.Path(exists=True, dir_okay=False),
    )
    as_json: bool = option("Print one JSON object per line, with all labels.", "--json")


@click.command("predict")
@takes_options
def command(options: PredictOptions) -> None:
    """Classify images with a running server.

    IMAGE is a file, a folder (all images in it, recursively) or a quoted glob. Exits with 1 if any
    image was not classified.

    \b
    Examples:
      offpath predict photo.jpg
      offpath predict photos/ --clients 8 --json > predictions.jsonl
      offpath predict 'photos/*.png' --thin
    """
    check_token(options.token)
    paths = list(find_images(options.images))
    predictions = _send_all(paths, options)
    refusals = [prediction for prediction in predictions if not prediction.is_ok]
    for one in zip(paths, predictions):
        click.echo(_format_json(*one) if options.as_json else _format_line(*one))
    if refusals:
        why = f"{len(refusals)} of {len(paths)} images were not classified"
        if any(prediction.status == 401 for prediction in refusals):
            wrong = "another token than --token's" if options.token else "a token (pass --token)"
            why += f"; the server asks for {wrong}"
        raise ExpectedError(why)


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


def _send_all(paths: list[Path], options: PredictOptions) -> list[Prediction]:
    headers = {"authorization": f"Bearer {options.token}"} if options.token else None
    url = check_url("--url", options.url)
    verify = read_authority(options.cacert) if options.cacert else True
    predictions: list[Prediction] = []
    with (
        Client(url, options.model, options.thin, headers=headers, verify=verify) as client,
        counting_bar("predicting") as progress,
    ):
        try:
            for prediction in client.predict_many(paths, options.clients):
                predictions.append(prediction)
                progress(len(predictions), len(paths))
        except ServerUnreachable as error:
            raise ExpectedError(f"{error}{format_hint(str(error))}") from error
        except ModelNotNamed as error:
            raise WrongOption(f"{error} (pass --model)") from error
    return predictions


def _format_json(path: Path, prediction: Prediction) -> str:
    if not prediction.status:
        return json.dumps({"image": str(path), "status": None, "error": prediction.error})
    answer = None
    if prediction.is_ok and not prediction.labels:
        try:
            answer = prediction.json()
            json.dumps(answer, allow_nan=False)
        except (ValueError, RecursionError):  # a text, or more than JSON's other readers take
            answer = prediction.body.decode("utf-8", "replace")
    fields = {
        "image": str(path),
        "status": prediction.status,
        "labels": dict(prediction.labels),
        "answer": answer,
        "type": prediction.error_type,
        "error": prediction.error,
        "latency_ms": round(prediction.latency_ms, 2),
        "server_timing_ms": prediction.server_timing,
        "request_id": prediction.request_id,
    }
    return json.dumps(fields)


def _format_line(path: Path, prediction: Prediction) -> str:
    """Returns a line with the file, the best label or the error, and where the time went."""
    status, ms = prediction.status, f"{prediction.latency_ms:.1f} ms"
    if not prediction.is_ok:
        what = f"{status}: {prediction.error}" if status else f"not sent: {prediction.error}"
        return printable(f"{path}  {what[:MAX_TEXT]}")
    # A custom handler may answer in another form.
    what = prediction.body.decode("utf-8", "replace")
    if prediction.labels:
        label, score = prediction.labels[0]
        what = f"{label[:MAX_TEXT]} {score:.3f}"
    stages = [f"{name} {ms:.1f}" for name, ms in prediction.server_timing.items() if ms >= 0.05]
    in_server = f" (server: {', '.join(stages)})"[:MAX_TEXT] if stages else ""
    return printable(f"{path}  {what}  {ms}{in_server}")
