"""Lists, reads and stores files, and objects in S3 by boto3."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.handler.prediction_log.delivery_failures import describe_error
from offpath.handler.prediction_log.log_settings import S3Options
from offpath.handler.prediction_log.sinks import (
    FileSink,
    check_reply,
    make_client_config,
    make_put_arguments,
)

S3 = "s3://"
READERS = 16
# Hidden, so that an OUTPUT with nothing but the lock of a killed run counts as empty.
LOCK = ".offpath-batch.lock"
# boto3 waits up to 20 s between two attempts, so a bucket may be unreachable for about a minute.
ATTEMPTS = 8
STREAM_ATTEMPTS = 3
# S3's replies about one object: it does not exist, or it lies in an archive class such as Glacier.
GONE = ("NoSuchKey", "InvalidObjectState")


def split_name(name: str) -> tuple[str, str]:
    """Splits s3://bucket/key; unlike in a URL, a key may contain ? and #."""
    bucket, _, key = name.removeprefix(S3).partition("/")
    return bucket, key


def read_s3_options() -> S3Options:
    """Returns the region and the endpoint that AWS's own variables name."""
    endpoint_url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return S3Options(os.environ.get("AWS_DEFAULT_REGION"), endpoint_url)


class Storage:
    """Files, and objects in S3 under names that begin with s3://. Threads may share it.

    Args:
        options: region and endpoint of S3.
        attempts: attempts of each request to S3.
    """

    def __init__(self, options: S3Options, attempts: int = ATTEMPTS) -> None:
        self._options, self._attempts = options, attempts

    def open(self) -> None:
        """Makes the client for S3 now; fails without boto3, a region or an endpoint."""
        _ = self._client

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = make_client_config(self._options)
        config["max_pool_connections"] = READERS
        config["retries"] = {"mode": "standard", "total_max_attempts": self._attempts}
        return boto3.client(
            "s3",
            region_name=self._options.region,
            endpoint_url=self._options.endpoint_url,
            config=Config(**config),
        )

    def list(self, place: str, below: str = "") -> Iterator[str]:
        """Yields the names of all files in a folder and its folders, or of all objects there.

        Args:
            place: a folder, or s3://BUCKET/PREFIX.
            below: how the names continue after `place` and a slash.

        Raises:
            OSError: a folder cannot be read. Its images must not be left out in silence.
        """
        if not place.startswith(S3):
            start = os.path.join(place, below)
            top = os.path.join(place, below.rpartition("/")[0])
            for folder, folders, files in os.walk(top, onerror=_raise):
                folders.sort()
                names = (os.path.join(folder, name) for name in sorted(files))
                yield from (name for name in names if name.startswith(start))
            return
        bucket, prefix = split_name(place.rstrip("/") + "/" + below)
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            keys = (entry["Key"] for entry in page.get("Contents", []))
            yield from (f"{S3}{bucket}/{key}" for key in keys if not key.endswith("/"))

    def read(self, name: str, max_bytes: int = sys.maxsize) -> bytes:
        """Returns the content of a file or object.

        Args:
            name: path of the file, or s3://BUCKET/KEY.
            max_bytes: size of the largest that is read.

        Raises:
            OSError: this file or object cannot be read, or has more bytes; others may be readable.
            ValueError: no file or object can have this name.
        """
        if not name.startswith(S3):
            return read_regular_file(Path(name), max_bytes)
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        bucket, key = split_name(name)
        for attempt in range(1, STREAM_ATTEMPTS + 1):
            try:
                reply = self._client.get_object(Bucket=bucket, Key=key)
                if reply["ContentLength"] > max_bytes:
                    reply["Body"].close()
                    raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", name)
                content: bytes = reply["Body"].read()
                return content
            except ParamValidationError as error:
                raise ValueError("not s3://BUCKET/KEY") from error
            except ClientError as error:
                if error.response["Error"]["Code"] in GONE:
                    raise FileNotFoundError(str(error)) from error
                raise
            except BotoCoreError:  # boto3 itself does not repeat a download that breaks off
                if attempt == STREAM_ATTEMPTS:
                    raise
        raise AssertionError("not reached")

    @contextlib.contextmanager
    def hold(self, place: str) -> Iterator[None]:
        """Keeps other runs out of a folder until this one ends, also by SIGKILL.

        A bucket knows no such lock.

        Raises:
            ExpectedError: another run has the folder.
        """
        if place.startswith(S3):
            yield
            return
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / LOCK, "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ExpectedError(
                    f"another `offpath batch` is writing to OUTPUT {place!r}; wait until it has "
                    "ended, or choose another OUTPUT"
                ) from error
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Stores a file or object; it appears under its name only when it is complete."""
        if not name.startswith(S3):
            path = Path(name)
            FileSink(path.parent, is_synced=True).write(path.name, content)
            return
        bucket, key = split_name(name)
        # Not every server knows S3's newer checksums.
        is_md5 = self._options.endpoint_url is not None
        kind = "application/octet-stream"
        arguments = make_put_arguments(
            S3 + bucket, self._options, key, content, is_md5=is_md5, ContentType=kind
        )
        check_reply(self._client.put_object(**arguments), content)


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Reads a file, also through a link.

    Raises:
        OSError: it cannot be read, has more bytes, or is a FIFO or a device, which may never end.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
        return file.read()


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def explain(error: Exception, uri: str) -> Exception:
    """Returns an ExpectedError for a failure that a user can correct; other errors unchanged."""
    if isinstance(error, ExpectedError):
        return error
    is_aws = type(error).__module__.startswith(("botocore", "boto3"))
    if not (is_aws or isinstance(error, OSError)):
        return error
    return ExpectedError(f"{uri}: {describe_error(error, uri)[1]}")
