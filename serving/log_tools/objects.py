"""Lists and reads the prediction log's objects in a bucket (with boto3) or a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.errors import ExpectedError, WrongOption
from offpath.handler.prediction_log.delivery_failures import describe_error
from offpath.handler.prediction_log.log_settings import PredictionLogSettings, S3Options
from offpath.handler.prediction_log.packing import DamagedObject, unpack_lines
from offpath.handler.prediction_log.segment import (
    MOST_OBJECT_BYTES,
    SUFFIX_BY_COMPRESSION,
)
from offpath.handler.prediction_log.sinks import (
    make_client_config,
    split_file_uri,
    split_s3_uri,
)

DOWNLOADS_AT_ONCE = 8


class LogStore(Protocol):
    """Objects under a sink's URI. Keys are relative to the URI."""

    uri: str

    def list_keys(self, below: str) -> Iterator[str]:
        """Yields the keys that start with `below`, in order."""

    def get(self, key: str) -> bytes:
        """Returns an object as it is stored.

        Raises:
            DamagedObject: it is larger than `MOST_OBJECT_BYTES`.
        """


def make_client(options: S3Options, connections: int, retries: Mapping[str, Any] = {}) -> Any:
    """Makes a boto3 client for S3; threads may share it."""
    import boto3
    from botocore.config import Config

    config = make_client_config(options)
    config |= {"max_pool_connections": connections}
    config["retries"] |= retries
    return boto3.client(
        "s3",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        config=Config(**config),
    )


class S3Store:
    """Objects in an S3 bucket."""

    def __init__(self, uri: str, options: S3Options) -> None:
        self.uri = uri
        self._bucket, self._prefix = split_s3_uri(uri)
        self._client = make_client(options, DOWNLOADS_AT_ONCE)

    def list_keys(self, below: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + below
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield entry["Key"][len(self._prefix) :]

    def get(self, key: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        check_size(answer["ContentLength"])
        stored: bytes = answer["Body"].read()
        return stored


class FileStore:
    """Objects as files in a folder."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.folder = split_file_uri(uri)

    def list_keys(self, below: str) -> Iterator[str]:
        if not self.folder.is_dir():
            raise WrongOption(f"there is no folder {str(self.folder)!r}")
        paths = (path.relative_to(self.folder) for path in self.folder.glob("dt=*/*/*"))
        keys = (str(path) for path in paths if not path.name.startswith("."))
        yield from sorted(key for key in keys if key.startswith(below))

    def get(self, key: str) -> bytes:
        check_size((self.folder / key).stat().st_size)
        return (self.folder / key).read_bytes()


def open_store(settings: PredictionLogSettings) -> LogStore:
    """Opens the store at the settings' URI.

    Raises:
        ExpectedError: boto3 is not installed, or lacks a region or an endpoint.
    """
    if settings.uri.startswith("file://"):
        return FileStore(settings.uri)
    if not settings.uri.startswith("s3://"):
        raise WrongOption(f"{settings.uri}: records of this kind of sink cannot be read")
    try:
        return S3Store(settings.uri, settings.s3)
    except ValueError as error:  # from botocore, for an endpoint that is not a URL
        raise WrongOption(f"{settings.uri}: {error}") from error
    except Exception as error:
        raise explain(error, settings.uri) from error


def open_store_at(uri: str, endpoint_url: str | None, region: str | None) -> LogStore:
    """Opens the store at a URI.

    Raises:
        ExpectedError: the URI or the endpoint is not valid.
    """
    s3 = {"endpoint_url": endpoint_url, "region": region}
    try:
        settings = PredictionLogSettings.from_mapping({"uri": uri, "s3": s3}, {})
    except ValueError as error:
        raise WrongOption(str(error).replace("prediction_log.uri", "URI")) from error
    if settings.is_off:
        raise WrongOption(
            f"{uri!r} stores no records; expected s3://BUCKET/PREFIX or file:///FOLDER"
        )
    return open_store(settings)


def explain(error: Exception, uri: str) -> Exception:
    """Returns an ExpectedError for a failure that a user can correct; other errors unchanged."""
    if isinstance(error, ExpectedError):
        return error
    is_aws = type(error).__module__.startswith(("botocore", "boto3"))
    if not (is_aws or isinstance(error, OSError)):
        return error
    return ExpectedError(f"{uri}: {describe_error(error, uri)[1]}")


def compression_of(key: str) -> str:
    """Returns the compression of an object, by its name."""
    by_suffix = {suffix: name for name, suffix in SUFFIX_BY_COMPRESSION.items()}
    return by_suffix.get(Path(key).suffix, "none")


def check_size(stored_bytes: int) -> None:
    """Raises DamagedObject for an object that would take too much memory."""
    if stored_bytes > MOST_OBJECT_BYTES:
        raise DamagedObject(f"it has more than {MOST_OBJECT_BYTES} bytes")


def get_lines(store: LogStore, key: str) -> Iterator[bytes]:
    """Downloads an object and checks it as a whole. Reading its lines unpacks them again.

    Raises:
        DamagedObject: it cannot be decompressed, or is too large.
    """
    stored = store.get(key)
    compression = compression_of(key)
    for _ in unpack_lines(stored, compression):
        pass
    return unpack_lines(stored, compression)


def get_all(
    store: LogStore, keys: list[str]
) -> Iterator[tuple[str, Iterator[bytes] | DamagedObject]]:
    """Yields (key, lines or damage) of the objects in order, and downloads some objects ahead."""

    def get(key: str) -> Iterator[bytes] | DamagedObject:
        try:
            return get_lines(store, key)
        except DamagedObject as error:
            return error

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        for start in range(0, len(keys), DOWNLOADS_AT_ONCE):
            some = keys[start : start + DOWNLOADS_AT_ONCE]
            yield from zip(some, pool.map(get, some))
