"""The destinations of sealed segments: an S3 bucket or a folder."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from offpath.handler.prediction_log.delivery_failures import describe_error, error_code
from offpath.handler.prediction_log.log_settings import PredictionLogSettings, S3Options

HEADERS = {"ContentType": "application/x-ndjson", "ContentEncoding": "gzip"}
CONNECT_TIMEOUT_S = 5.0
# Codes of servers that do not know S3's additional checksums; 501 is a status without a body.
CHECKSUM_REFUSALS = ("InvalidArgument", "InvalidRequest", "NotImplemented", "501")


class UnprovenReply(Exception):
    """A response with status 200 does not prove that the object was stored."""


class Sink(Protocol):
    """A store for objects. Putting a key again replaces the object.

    All methods run in the event loop of the shipper's thread, never on the request's path. A sink
    raises any exception for a failure: the shipper keeps the segment and tries it again.
    """

    async def prepare(self) -> None:
        """Does the slow part of the first put in advance."""

    async def put(self, key: str, body: bytes) -> None:
        """Stores an object under the sink's prefix; raises unless storage is proved.

        Args:
            key: path of the object below the sink's URI.
            body: the object as it is to be stored, compressed already.
        """

    async def close(self) -> None:
        """Closes connections."""


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Splits s3://bucket/prefix into (bucket, prefix); the prefix is empty or ends in a slash."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    return parts.netloc, prefix + "/" if prefix else ""


def split_file_uri(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def make_put_arguments(
    uri: str, options: S3Options, key: str, body: bytes, *, is_md5: bool = False, **headers: str
) -> dict[str, Any]:
    """Returns arguments for S3's put_object, equal for every shipper so that a repeat is harmless.

    Either checksum makes the server refuse a body that was changed in transit; see `check_reply`.
    """
    bucket, prefix = split_s3_uri(uri)
    optional = {
        "StorageClass": options.storage_class,
        "SSEKMSKeyId": options.sse_kms_key_id,
        "ServerSideEncryption": "aws:kms" if options.sse_kms_key_id else None,
        "ContentMD5": _base64(hashlib.md5(body)) if is_md5 else None,
        "ChecksumSHA256": None if is_md5 else _base64(hashlib.sha256(body)),
    }
    return {
        "Bucket": bucket,
        "Key": prefix + key,
        "Body": body,
        **headers,
        **{name: value for name, value in optional.items() if value is not None},
    }


def check_reply(reply: Mapping[str, Any], body: bytes) -> None:
    """Accepts a response only if it proves that the server received `body`.

    AWS returns the checksum that it verified, with any encryption. Without a checksum the ETag must
    be the body's MD5, which it is for a single put without KMS.

    Raises:
        UnprovenReply: The reply proves nothing (a login page's 200) or another body.
    """
    checksum, etag = reply.get("ChecksumSHA256"), str(reply.get("ETag"))
    if checksum is not None:
        is_proof = checksum == _base64(hashlib.sha256(body))
    else:
        is_proof = etag.strip('"').lower() == hashlib.md5(body).hexdigest()
    if not is_proof:
        raise UnprovenReply(f"checksum {checksum!r}, ETag {etag!r}")


def _base64(digest: Any) -> str:
    return base64.b64encode(digest.digest()).decode()


def make_client_config(options: S3Options) -> dict[str, Any]:
    """Returns arguments for botocore's Config: time-outs, and no retries (the shipper retries)."""
    config: dict[str, Any] = {
        "connect_timeout": min(CONNECT_TIMEOUT_S, options.timeout_s),
        "read_timeout": options.timeout_s,
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": 4,
    }
    if options.endpoint_url:
        # Not every S3 server knows the checksums that AWS clients send by default.
        config["request_checksum_calculation"] = "when_required"
        config["response_checksum_validation"] = "when_required"
        config["s3"] = {"addressing_style": "path"}
    return config


class FileSink:
    """A folder of files. A file appears under its name only when it is complete."""

    def __init__(self, folder: Path, is_synced: bool) -> None:
        self.folder = folder
        self.is_synced = is_synced

    async def prepare(self) -> None:
        """Does nothing: a folder needs no preparation."""

    async def put(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(self.write, key, body)

    def write(self, key: str, body: bytes) -> None:
        """Writes a temporary file and moves it into place, over a former attempt's file."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        # Not for every user of the machine; the folder's group may read the records.
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        with open(descriptor, "wb") as file:
            file.write(body)
            if self.is_synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path)
        if self.is_synced:
            _sync_folder(path.parent)

    async def close(self) -> None:
        """Does nothing: no connection is open."""


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class S3Sink:
    """A bucket, written by aiobotocore."""

    def __init__(self, uri: str, options: S3Options) -> None:
        self.uri = uri
        self.options = options
        self._client: Any = None
        self._factory: Any = None
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._is_md5 = False

    async def prepare(self) -> None:
        async with self._opening:
            if self._client is None:
                self._client = await self._open_client()

    async def put(self, key: str, body: bytes) -> None:
        await self.prepare()
        is_md5 = self._is_md5
        arguments = make_put_arguments(self.uri, self.options, key, body, is_md5=is_md5, **HEADERS)
        try:
            # botocore's read time-out starts again with each byte; this one limits the whole
            # upload.
            reply = await asyncio.wait_for(
                self._client.put_object(**arguments), self.options.timeout_s
            )
        except Exception as error:
            if describe_error(error, self.uri)[0] in ("credentials", "refused"):
                await self.close()
            if error_code(error) in CHECKSUM_REFUSALS:
                # The checksum may be the cause, so the next attempt sends the other kind.
                self._is_md5 = not is_md5
            raise
        try:
            check_reply(reply, body)
        except UnprovenReply:
            # With KMS no MD5 proves an object.
            self._is_md5 = False
            raise

    async def _open_client(self) -> Any:
        if self._factory is None:
            self._factory = await asyncio.to_thread(_make_client_factory, self.options)
        return await self._stack.enter_async_context(self._factory.create())

    async def close(self) -> None:
        """Closes the client; the next put opens another, which looks for credentials again."""
        self._client = None
        await self._stack.aclose()


def _make_client_factory(options: S3Options) -> Any:
    # Imported in a thread at first need: aiobotocore takes half a second, and neither a worker's
    # start nor the event loop may wait for it.
    from offpath.handler.prediction_log.s3_client import ClientFactory

    return ClientFactory(options, make_client_config(options))


def open_sink(settings: PredictionLogSettings) -> Sink:
    """Returns the sink for the settings' URI, without touching network or disk."""
    if settings.uri.startswith("s3://"):
        return S3Sink(settings.uri, settings.s3)
    if settings.uri.startswith("file://"):
        return FileSink(split_file_uri(settings.uri), settings.sync == "fsync")
    raise ValueError(f"open_sink has no sink for {settings.uri}")
