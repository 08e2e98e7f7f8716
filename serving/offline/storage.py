"""Lists and reads pictures and stores results: files, and objects in S3 by boto3."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.prediction_log.log_settings import S3Options
from offpath.handler.prediction_log.sinks import (
    FileSink,
    check_answer,
    make_put_arguments,
)
from offpath.serving.log_tools.objects import make_client

S3 = "s3://"
READERS = 16
# Hidden, so that an OUTPUT with nothing but the lock of a killed run counts as empty.
LOCK = ".offpath-batch.lock"
# boto3 waits up to 20 s between two attempts, so a bucket may be unreachable for about a minute.
RETRIES = {"mode": "standard", "total_max_attempts": 8}
STREAM_ATTEMPTS = 3
# S3's answers about one object: it does not exist, or it lies in an archive class such as Glacier.
GONE = ("NoSuchKey", "InvalidObjectState")


def split_name(name: str) -> tuple[str, str]:
    """Splits s3://bucket/key; unlike in a URL, a key may contain ? and #."""
    bucket, _, key = name.removeprefix(S3).partition("/")
    return bucket, key


class Storage:
    """Files, and objects in S3 under names that begin with s3://. Threads may share it.

    Args:
        options: region and endpoint of S3.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options

    @cached_property
    def _client(self) -> Any:
        return make_client(self._options, READERS, RETRIES)

    def list(self, place: str) -> Iterator[str]:
        """Yields the names of all files in a folder and its folders, or of all objects below.

        Raises:
            OSError: a folder cannot be read. Its pictures must not be left out in silence.
        """
        if not place.startswith(S3):
            for folder, folders, files in os.walk(place, onerror=_raise):
                folders.sort()
                yield from (os.path.join(folder, name) for name in sorted(files))
            return
        bucket, prefix = split_name(place.rstrip("/") + "/")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            keys = (entry["Key"] for entry in page.get("Contents", []))
            yield from (f"{S3}{bucket}/{key}" for key in keys if not key.endswith("/"))

    def read(self, name: str) -> bytes:
        """Returns the content of a file or object.

        Raises:
            OSError: this file or object cannot be read; others may be.
        """
        if not name.startswith(S3):
            return Path(name).read_bytes()
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = split_name(name)
        for attempt in range(1, STREAM_ATTEMPTS + 1):
            try:
                answer = self._client.get_object(Bucket=bucket, Key=key)
                content: bytes = answer["Body"].read()
                return content
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
        arguments = make_put_arguments(
            S3 + bucket, self._options, key, content, "none", is_md5=is_md5
        )
        arguments["ContentType"] = "application/octet-stream"
        check_answer(self._client.put_object(**arguments), content)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
