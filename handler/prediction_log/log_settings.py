"""The settings of the prediction log, checked once when they are read.

Precedence: defaults < the mapping < the variables OFFPATH_PREDICTION_LOG and OFFPATH_SPOOL_DIR.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from offpath.handler.config_section import (
    REQUIRED,
    choice,
    integer,
    optional,
    positive,
    read_section,
    section,
    setting,
    text,
    wrong,
)
from offpath.handler.prediction_log.record import FIELDS

MIB = 1 << 20
# More than any file system can hold.
MAX_BYTES = 1 << 60
OFF = "off"
URI_VARIABLE = "OFFPATH_PREDICTION_LOG"
SPOOL_VARIABLE = "OFFPATH_SPOOL_DIR"

# The smallest bound that leaves room for the open segment and uploads in flight.
MIN_SEGMENTS_IN_SPOOL = 4
ALWAYS_RECORDED = ("event_id", "inference_time")


def read_uri(value: object, key: str) -> str:
    accepted = "s3://bucket/prefix, file:///absolute/folder, off (no credentials in it)"
    # YAML 1.1 reads a bare `off` as false.
    if value is False or value == OFF:
        return OFF
    if not isinstance(value, str):
        raise wrong(key, value, accepted)
    parts = urlsplit(value)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise wrong(key, parts.scheme + "://...", accepted)
    is_s3 = parts.scheme == "s3" and parts.netloc != ""
    is_file = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
    if not (is_s3 or is_file):
        raise wrong(key, value, accepted)
    return value.rstrip("/")


def read_folder(value: object, key: str) -> Path:
    if not isinstance(value, str) or not value:
        raise wrong(key, value, "the path of a folder on a local disk")
    return Path(value).expanduser().absolute()


def read_fields(value: object, key: str) -> tuple[str, ...]:
    """Accepts a list of FIELDS; returns them in order, with the fields that are always recorded."""
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    if not names or any(name not in FIELDS for name in names):
        raise wrong(key, value, f"a list of {', '.join(FIELDS)}")
    return tuple(name for name in FIELDS if name in (*names, *ALWAYS_RECORDED))


def read_header(value: object, key: str) -> str:
    name: str = text()(value, key)
    return name.lower()


@dataclass(frozen=True)
class S3Options:
    """Options for uploads to S3; None leaves a value to the AWS default chain.

    Attributes:
        endpoint_url: URL of an S3 server other than AWS.
        storage_class: Storage class, for instance STANDARD_IA.
        sse_kms_key_id: Key for SSE-KMS; None keeps the bucket's default encryption.
        timeout_s: Time limit for one upload, also for a hanging socket.
    """

    region: str | None = setting(None, optional(text()))
    endpoint_url: str | None = setting(None, optional(text()))
    storage_class: str | None = setting(None, optional(text()))
    sse_kms_key_id: str | None = setting(None, optional(text()))
    timeout_s: float = setting(30.0, positive(3600))


@dataclass(frozen=True, kw_only=True)
class PredictionLogSettings:
    """The settings of the prediction log.

    Attributes:
        uri: s3://bucket/prefix, file:///folder, or off.
        spool_dir: Folder on a local disk where records wait for their delivery.
        spool_max_bytes: Bound on the records waiting for one sink, all workers together.
        when_full: `drop_oldest` gives up the oldest records (counted); `block` holds replies back
            until there is room, and refuses to start without a writable spool.
        segment_max_bytes: Size before compression at which a segment is sealed and shipped.
        segment_max_age_s: Age of the first record at which a segment is sealed and shipped.
        fields: Names of the fields to record; `event_id` and `inference_time` are always recorded.
        payload_hash: `xxh3_64` identifies an image and takes 35 microseconds for a 1.2 MB body;
            `sha256` (its first 16 digits) withstands forgery and takes 3.3 ms, a fifth of the whole
            request.
        user_id_header: Request header that holds the client-supplied user id.
        sample_rate: Share of the events recorded, in (0, 1]; chosen by a hash of the event id.
        sync: `os` hands records to the kernel (they survive SIGKILL); `fsync` waits for the disk.
        retry_max_s: Longest pause between two attempts to deliver.
        s3: Options for uploads to S3.
    """

    uri: str = setting(OFF, read_uri)
    spool_dir: Path = setting(REQUIRED, read_folder)
    spool_max_bytes: int = setting(1024 * MIB, integer(4096, MAX_BYTES))
    when_full: str = setting("drop_oldest", choice(("drop_oldest", "block")))
    segment_max_bytes: int = setting(8 * MIB, integer(1024, 64 * MIB))
    segment_max_age_s: float = setting(60.0, positive(86_400))
    fields: tuple[str, ...] = setting(FIELDS, read_fields)
    payload_hash: str = setting("xxh3_64", choice(("xxh3_64", "sha256")))
    user_id_header: str = setting("x-user-id", read_header)
    sample_rate: float = setting(1.0, positive(1))
    sync: str = setting("os", choice(("os", "fsync")))
    retry_max_s: float = setting(30.0, positive(3600))
    s3: S3Options = setting(S3Options(), section(S3Options))

    @property
    def is_off(self) -> bool:
        return self.uri == OFF

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, object] | None,
        environ: Mapping[str, str],
        where: str = "prediction_log",
    ) -> PredictionLogSettings:
        """Checks the `prediction_log:` mapping; variables of the environment override it.

        Raises:
            ConfigError: The message names the key, its value and what is accepted.
        """
        values = read_section(cls, mapping, where)
        if environ.get(URI_VARIABLE):
            values["uri"] = read_uri(environ[URI_VARIABLE], URI_VARIABLE)
        if environ.get(SPOOL_VARIABLE):
            values["spool_dir"] = read_folder(environ[SPOOL_VARIABLE], SPOOL_VARIABLE)
        values.setdefault("spool_dir", default_spool_dir(environ))
        settings = cls(**values)
        least = MIN_SEGMENTS_IN_SPOOL * settings.segment_max_bytes
        if settings.spool_max_bytes < least:
            raise wrong(
                f"{where}.spool_max_bytes",
                settings.spool_max_bytes,
                f"at least {MIN_SEGMENTS_IN_SPOOL} times segment_max_bytes, {least}",
            )
        return settings


def default_spool_dir(environ: Mapping[str, str]) -> Path:
    """Returns the user's state folder: records must outlive the process and clean-ups of /tmp."""
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "offpath" / "spool"
