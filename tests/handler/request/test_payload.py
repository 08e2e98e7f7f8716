from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

from offpath.handler.errors import BadEnvelope, EmptyPayload, PayloadTooLarge
from offpath.handler.request import payload
from offpath.handler.request.payload import read_payload
from tests.guarantees import guarantee
from tests.support.photographs import encode, find_photograph

LIMIT = 20 * 2**20
JPEG = encode(find_photograph("coffee").rgb, "JPEG")
TEXT = base64.b64encode(JPEG).decode()
WRAPPED = base64.encodebytes(JPEG)
URL_SAFE = base64.urlsafe_b64encode(JPEG).decode()
DATA_URL = f"data:image/jpeg;base64,{TEXT}"
BOM = "\ufeff"


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"body": bytearray(JPEG)}, id="raw-body"),
        pytest.param({"data": bytearray(JPEG)}, id="form-field"),
        pytest.param({"data": JPEG, "body": b"ignored"}, id="field-before-body"),
        pytest.param({"data": b"", "body": JPEG}, id="empty-field-beside-a-body"),
        pytest.param({"body": TEXT.encode()}, id="base64-bytes"),
        pytest.param({"body": WRAPPED}, id="base64-wrapped-at-76"),
        pytest.param({"body": json.dumps({"data": TEXT}).encode()}, id="json-object"),
        pytest.param({"body": json.dumps(TEXT).encode()}, id="json-string"),
        pytest.param({"body": {"data": TEXT}}, id="dict-decoded-by-torchserve"),
        pytest.param({"data": json.dumps({"b64": TEXT}).encode()}, id="json-in-a-field"),
        pytest.param({"body": URL_SAFE.encode()}, id="url-safe"),
        pytest.param({"body": TEXT.rstrip("=").encode()}, id="unpadded"),
        pytest.param({"body": DATA_URL.encode()}, id="data-url"),
        pytest.param(
            {"body": f"{BOM}{json.dumps({'data': TEXT})}".encode()}, id="json-with-an-order-mark"
        ),
        pytest.param({"body": json.dumps({"data": TEXT}).encode("utf-16")}, id="json-in-utf-16"),
    ],
)
def test_every_envelope_gives_the_same_bytes(row: dict[str, Any]) -> None:
    assert bytes(read_payload(row, LIMIT)) == JPEG


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"data": "YQ==", "data": "Yg=="}', "two fields 'data'", id="key-twice"),
        pytest.param(b'{"data": "YQ==", "b64": "Yg=="}', "one image per request", id="two-keys"),
        pytest.param(b'["YQ==", "Yg=="]', "one image per request", id="list"),
        pytest.param(b'{"data": "data:image/png,%89PNG"}', "not base64", id="url-of-percent-signs"),
    ],
)
def test_json_that_would_be_half_answered_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadEnvelope, match=said):
        read_payload({"body": body}, LIMIT)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"], ids=str.lower)
def test_an_image_is_never_taken_for_an_envelope_and_never_copied(format: str, kind: Any) -> None:
    body = kind(encode(find_photograph("coffee").rgb.resize((40, 30)), format))
    assert read_payload({"body": body}, LIMIT) is body


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({}, id="no-keys"),
        pytest.param({"file": JPEG}, id="other-key"),
        pytest.param({"body": b""}, id="no-bytes"),
        pytest.param({"body": {"data": ""}}, id="empty-base64"),
        pytest.param({"body": " \n "}, id="blank-text"),
    ],
)
def test_row_without_an_image_is_empty(row: dict[str, Any]) -> None:
    with pytest.raises(EmptyPayload):
        read_payload(row, LIMIT)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"body": JPEG}, id="raw"),
        pytest.param({"body": TEXT.encode()}, id="base64"),
        pytest.param({"body": {"data": TEXT}}, id="json"),
    ],
)
def test_byte_limit_counts_the_image_not_its_envelope(row: dict[str, Any]) -> None:
    assert read_payload(row, len(JPEG))
    with pytest.raises(PayloadTooLarge, match=f"{len(JPEG)} bytes; at most"):
        read_payload(row, len(JPEG) - 1)


@guarantee(
    "Costly JSON, base64 and forms",
    "handler/request/payload.py",
    "if has_more_values(text, MAX_JSON_VALUES):",
    "if False:",
)
@pytest.mark.parametrize("piece", [b"{},", b"[", b'"a":1,'])
def test_json_of_a_million_values_costs_nothing(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytearray(b"[" + piece * 2_000_000)
    monkeypatch.setattr(payload, "json", None)  # nothing is parsed
    with pytest.raises(BadEnvelope, match="more than 1000 values"):
        read_payload({"body": body}, 10**9)


@guarantee("Costly JSON, base64 and forms")
def test_base64_in_millions_of_lines_takes_little_memory() -> None:
    body = bytearray(b"ab \n" * 2_000_000)
    tracemalloc.start()
    read_payload({"body": body}, 10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(body)
