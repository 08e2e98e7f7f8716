"""Lists and reads the prediction log's objects in a bucket or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from offpath.handler.errors import WrongOption
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.packing import DamagedObject, unpack_lines
from offpath.handler.prediction_log.segment import MOST_OBJECT_BYTES, SUFFIX_BY_COMPRESSION
from offpath.handler.prediction_log.sinks import split_file_uri, split_s3_uri
from offpath.serving.storage import S3, Storage, explain, read_s3_options

DOWNLOADS_AT_ONCE = 8


@dataclass(frozen=True)
class LogStore:
    """Objects under a sink's URI. Keys are relative to the URI.

    Attributes:
        uri: the sink's URI.
        place: name of that place in the storage: a folder, or s3://BUCKET/PREFIX.
    """

    uri: str
    place: str
    storage: Storage

    def list_keys(self, below: str) -> Iterator[str]:
        """Yields the keys that start with `below`, in order."""
        if not self.place.startswith(S3) and not Path(self.place).is_dir():
            raise WrongOption(f"there is no folder {self.place!r}")
        start = len(self.place) + 1
        yield from sorted(name[start:] for name in self.storage.list(self.place, below))

    def get(self, key: str) -> bytes:
        """Returns an object as it is stored.

        Raises:
            DamagedObject: it is larger than `MOST_OBJECT_BYTES`, or cannot be read.
        """
        try:
            return self.storage.read(f"{self.place}/{key}", MOST_OBJECT_BYTES)
        except OSError as error:
            raise DamagedObject(f"it cannot be read: {error.strerror or error}") from error


def open_store_at(uri: str) -> LogStore:
    """Opens the store at a URI; for S3, the environment names the region and the endpoint.

    Raises:
        ExpectedError: the URI or the endpoint is not valid, boto3 is not installed, or it lacks a
            region.
    """
    try:
        settings = PredictionLogSettings.from_mapping({"uri": uri}, {})
    except ValueError as error:
        raise WrongOption(str(error).replace("prediction_log.uri", "URI")) from error
    if settings.is_off:
        raise WrongOption(
            f"{uri!r} stores no records; expected s3://BUCKET/PREFIX or file:///FOLDER"
        )
    # A user waits for the answer, so nothing is repeated for a minute.
    storage = Storage(read_s3_options(), attempts=1)
    if urlsplit(settings.uri).scheme == "file":
        return LogStore(settings.uri, str(split_file_uri(settings.uri)), storage)
    bucket, prefix = split_s3_uri(settings.uri)
    try:
        storage.open()
    except ValueError as error:  # from botocore, for an endpoint that is not a URL
        raise WrongOption(f"{settings.uri}: {error}") from error
    except Exception as error:
        raise explain(error, settings.uri) from error
    return LogStore(settings.uri, f"{S3}{bucket}/{prefix}".rstrip("/"), storage)


def compression_of(key: str) -> str:
    """Returns the compression of an object, by its name."""
    by_suffix = {suffix: name for name, suffix in SUFFIX_BY_COMPRESSION.items()}
    return by_suffix.get(Path(key).suffix, "none")


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
