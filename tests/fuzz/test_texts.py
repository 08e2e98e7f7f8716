"""Random envelopes, forms and settings are read, or refused with the right kind of error."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.archive.model_config import SERVER_SETTINGS, make_model_config
from offpath.errors import ExpectedError
from offpath.handler.config import HandlerConfig
from offpath.handler.errors import BadEnvelope, ConfigError, ItemError
from offpath.handler.request.forms import FORM, MULTIPART, parse_body, parse_multipart
from offpath.handler.request.payload import JSON_KEYS, read_payload
from tests.fuzz.seeds import read_corpus
from tests.guarantees import guarantee

LIMIT = 10_000
FOUND = read_corpus("bodies")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(JSON_KEYS) | st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize("kind", ["", FORM, f"{MULTIPART}; boundary=x", MULTIPART])
@pytest.mark.parametrize("name", FOUND)
def test_known_text_is_bytes_or_a_4xx(name: str, kind: str) -> None:
    try:
        payload = read_payload(parse_body(FOUND[name], kind), LIMIT)
    except ItemError as error:
        assert 400 <= error.status < 500
    else:
        assert 0 < len(payload) <= LIMIT


@guarantee("Bytes that cause a 5xx or end a worker")
@given(
    st.one_of(
        st.sampled_from(sorted(FOUND.values())),
        st.binary(max_size=200),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=200).map(base64.b64encode),
        st.binary(max_size=50).map(lambda data: b'{"data": "' + data + b'"}'),
    ),
    st.sampled_from(["data", "body", "other"]),
)
def test_any_body_is_bytes_or_a_4xx(body: bytes, name: str) -> None:
    try:
        payload = read_payload({name: bytearray(body)}, LIMIT)
    except ItemError as error:
        assert 400 <= error.status < 500
    else:
        assert 0 < len(payload) <= LIMIT


PIECES = st.sampled_from(
    [b"--x", b"\r\n", b"--x--", b"\r\n\r\n", b"--", b"\n", b"data", b"\xff", b"x" * 5000]
    + [b'Content-Disposition: form-data; name="data"', b"name=", b'"', b";"]
)


@guarantee("Costly JSON, base64 and forms")
@given(
    st.lists(PIECES | st.binary(max_size=20), max_size=40).map(b"".join),
    st.sampled_from(["multipart/form-data; boundary=x", "multipart/form-data"])
    | st.text(max_size=40),
)
def test_any_form_is_parsed_into_parts_of_itself_or_refused(body: bytes, kind: str) -> None:
    try:
        fields = parse_multipart(body, kind)
    except BadEnvelope:
        return
    assert all(bytes(value) in body for value in fields.values())


SETTING_VALUES = JSON | st.sampled_from(["auto", "exact", 0.5, [0.1, 0.2, 0.3], 224])


@guarantee("Settings that would open something")
@given(
    st.dictionaries(
        st.sampled_from(sorted(HandlerConfig.__dataclass_fields__)) | st.text(max_size=5),
        SETTING_VALUES,
        max_size=4,
    ),
    st.dictionaries(
        st.sampled_from(sorted(SERVER_SETTINGS)) | st.text(max_size=5),
        SETTING_VALUES,
        max_size=4,
    ),
)
def test_any_settings_are_taken_or_refused(handler: dict[str, Any], server: dict[str, Any]) -> None:
    for make in (
        lambda: HandlerConfig.from_mapping(handler, environ={}),
        lambda: make_model_config(server, {}, handler),
    ):
        try:
            make()
        except (ConfigError, ExpectedError) as error:
            assert str(error).isprintable()
