"""Settings of the prediction log, checked once at the edge.

Precedence: environment (OFFPATH_PREDICTION_LOG, OFFPATH_SPOOL_DIR) over the mapping over defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from offpath.handler.prediction_log.record import FIELDS

MIB = 1 << 20
OFF = "off"
URI_VARIABLE = "OFFPATH_PREDICTION_LOG"
SPOOL_VARIABLE = "OFFPATH_SPOOL_DIR"

# The smallest bound that leaves room for the open segment and uploads in flight.
MIN_SEGMENTS_IN_SPOOL = 4


@dataclass(frozen=True)
class S3Options:
    """How objects are put; whatever is None is left to the AWS default chain.

    Attributes:
        region: Region of the bucket.
        endpoint_url: Another S3 server than AWS.
        storage_class: For instance STANDARD_IA.
        sse_kms_key_id: Key for SSE-KMS; None keeps the bucket's default encryption.
        timeout_s: Longest that one upload may take, a hanging socket included.
    """

    region: str | None = None
    endpoint_url: str | None = None
    storage_class: str | None = None
    sse_kms_key_id: str | None = None
    timeout_s: float = 30.0


@dataclass(frozen=True)
class PredictionLogSettings:
    """Everything the prediction log can be told.

    Attributes:
        uri: s3://bucket/prefix, file:///folder, or off.
        spool_dir: Folder on a local disk where records wait for their delivery.
        spool_max_bytes: Bound of the records waiting for one sink, all workers together.
        when_full: drop_oldest gives up the oldest records (counted); block holds replies back
            until there is room, and refuses to start without a spool that can be written.
        segment_max_bytes: A segment is sealed and shipped at this size (before compression).
        segment_max_age_s: A segment is sealed and shipped this long after its first record.
        fields: Names of the fields to record, `event_id` and `inference_time` always.
        payload_hash: xxh3_64 finds the picture again for 35 microseconds a 1.2 MB body; sha256 (its
            first 16 digits) withstands forgery and costs 3.3 ms, a fifth of the whole request.
        user_id_header: Request header that holds the client-supplied user id.
        sample_rate: Share of the events recorded, in (0, 1]; chosen by a hash of the event id.
        sync: os hands records to the kernel (they survive SIGKILL); fsync waits for the disk.
        compression: gzip, zstd or none.
        retry_max_s: Longest pause between two attempts to deliver.
        s3: How objects are put.
    """

    uri: str
    spool_dir: Path
    spool_max_bytes: int = 1024 * MIB
    when_full: str = "drop_oldest"
    segment_max_bytes: int = 8 * MIB
    segment_max_age_s: float = 60.0
    fields: tuple[str, ...] = FIELDS
    payload_hash: str = "xxh3_64"
    user_id_header: str = "x-user-id"
    sample_rate: float = 1.0
    sync: str = "os"
    compression: str = "gzip"
    retry_max_s: float = 30.0
    s3: S3Options = field(default_factory=S3Options)

    @property
    def is_off(self) -> bool:
        return self.uri == OFF

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, object] | None, environ: Mapping[str, str]
    ) -> PredictionLogSettings:
        """Checks the `prediction_log:` mapping and lays the environment over it.

        Raises:
            ValueError: Naming the key, its value and what is accepted.
        """
        values = _checked(dict(mapping or {}), _CHECKS, "prediction_log")
        if environ.get(URI_VARIABLE):
            values["uri"] = _check_uri(environ[URI_VARIABLE], URI_VARIABLE)
        if environ.get(SPOOL_VARIABLE):
            values["spool_dir"] = _check_folder(environ[SPOOL_VARIABLE], SPOOL_VARIABLE)
        values.setdefault("uri", OFF)
        values.setdefault("spool_dir", default_spool_dir(environ))
        settings = cls(**values)  # type: ignore[arg-type]
        _check_bound(settings)
        return settings


def default_spool_dir(environ: Mapping[str, str]) -> Path:
    """Where state belongs that must outlive the process: not a temporary folder."""
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "offpath" / "spool"


def _checked(
    mapping: Mapping[str, object],
    checks: Mapping[str, Callable[[object, str], object]],
    where: str,
) -> dict[str, object]:
    for key in mapping:
        if key not in checks:
            raise ValueError(
                f"unknown key {where}.{key}; accepted: {', '.join(sorted(checks))}"
            )
    return {key: checks[key](value, f"{where}.{key}") for key, value in mapping.items()}


def _wrong(key: str, value: object, accepted: str) -> ValueError:
    return ValueError(f"{key} is {value!r}; accepted: {accepted}")


def _check_uri(value: object, key: str) -> str:
    accepted = "s3://bucket/prefix, file:///absolute/folder, off (no credentials in it)"
    # YAML 1.1 reads a bare `off` as false.
    if value is False or value == OFF:
        return OFF
    if not isinstance(value, str):
        raise _wrong(key, value, accepted)
    parts = urlsplit(value)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _wrong(key, parts.scheme + "://...", accepted)
    is_s3 = parts.scheme == "s3" and parts.netloc != ""
    is_file = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
    if not (is_s3 or is_file):
        raise _wrong(key, value, accepted)
    return value.rstrip("/")


def _check_folder(value: object, key: str) -> Path:
    if not isinstance(value, str) or not value:
        raise _wrong(key, value, "the path of a folder on a local disk")
    return Path(value).expanduser().absolute()


def _check_integer(least: int) -> Callable[[object, str], object]:
    def check(value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _wrong(key, value, f"a whole number of bytes, {least} or more")
        return value

    return check


def _check_number(
    above: float, most: float, unit: str
) -> Callable[[object, str], object]:
    def check(value: object, key: str) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not above < value <= most:  # type: ignore[operator]
            raise _wrong(key, value, f"{unit} above {above:g}, at most {most:g}")
        return float(value)  # type: ignore[arg-type]

    return check


def _check_choice(*accepted: str) -> Callable[[object, str], object]:
    def check(value: object, key: str) -> str:
        if value not in accepted:
            raise _wrong(key, value, ", ".join(accepted))
        return str(value)

    return check


def _check_text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or not value.isascii():
        raise _wrong(key, value, "a non-empty ASCII text")
    return value


def _check_header(value: object, key: str) -> str:
    return _check_text(value, key).lower()


def _check_optional_text(value: object, key: str) -> str | None:
    return None if value is None else _check_text(value, key)


def _check_fields(value: object, key: str) -> tuple[str, ...]:
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    if not names or any(name not in FIELDS for name in names):
        raise _wrong(key, value, f"a list of {', '.join(FIELDS)}")
    always = {"event_id", "inference_time"}
    return tuple(name for name in FIELDS if name in names or name in always)


def _check_s3(value: object, key: str) -> S3Options:
    if not isinstance(value, Mapping):
        names = ", ".join(option.name for option in fields(S3Options))
        raise _wrong(key, value, f"a mapping with {names}")
    return S3Options(**_checked(value, _S3_CHECKS, key))  # type: ignore[arg-type]


def _check_bound(settings: PredictionLogSettings) -> None:
    least = MIN_SEGMENTS_IN_SPOOL * settings.segment_max_bytes
    if settings.spool_max_bytes < least:
        raise _wrong(
            "prediction_log.spool_max_bytes",
            settings.spool_max_bytes,
            f"{MIN_SEGMENTS_IN_SPOOL} times segment_max_bytes, {least}, or more",
        )


_S3_CHECKS: dict[str, Callable[[object, str], object]] = {
    "region": _check_optional_text,
    "endpoint_url": _check_optional_text,
    "storage_class": _check_optional_text,
    "sse_kms_key_id": _check_optional_text,
    "timeout_s": _check_number(0, 3600, "seconds"),
}
_CHECKS: dict[str, Callable[[object, str], object]] = {
    "uri": _check_uri,
    "spool_dir": _check_folder,
    "spool_max_bytes": _check_integer(4096),
    "when_full": _check_choice("drop_oldest", "block"),
    "segment_max_bytes": _check_integer(1024),
    "segment_max_age_s": _check_number(0, 86400, "seconds"),
    "fields": _check_fields,
    "payload_hash": _check_choice("xxh3_64", "sha256"),
    "user_id_header": _check_header,
    "sample_rate": _check_number(0, 1, "a share"),
    "sync": _check_choice("os", "fsync"),
    "compression": _check_choice("gzip", "zstd", "none"),
    "retry_max_s": _check_number(0, 3600, "seconds"),
    "s3": _check_s3,
}
