from __future__ import annotations

import time
import tracemalloc

import pytest

from offpath.handler.errors import BadEnvelope
from offpath.handler.request.forms import FORM, find_lost_field, parse_body, parse_multipart
from tests.guarantees import guarantee

TYPE = "multipart/form-data; boundary=xyz"
BODY_BYTES = 8 * 2**20


def form(*parts: tuple[str, bytes], boundary: str = "xyz") -> bytes:
    lines = [
        f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts
    ]
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"; filename="p.jpg"'


@pytest.mark.parametrize("content", [b"abc", b"", b"\r\n--xy\r\n\0\xff" * 1000])
def test_fields_of_a_form_are_unchanged(content: bytes) -> None:
    body = form((field("data"), content), (field("target"), b"7"))
    got = parse_multipart(body, TYPE)
    assert {name: bytes(value) for name, value in got.items()} == {"data": content, "target": b"7"}


def test_a_quoted_boundary_and_a_preamble_are_read() -> None:
    body = b"preamble\r\n" + form((field("data"), b"x"), boundary="a b")
    got = parse_multipart(body, 'multipart/form-data; charset=x; boundary="a b"')
    assert bytes(got["data"]) == b"x"


def test_name_in_a_content_type_is_not_a_field() -> None:
    head = 'Content-Type: image/jpeg; name="data"\r\n' + field("image")
    assert list(parse_multipart(form((head, b"x")), TYPE)) == ["image"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(form((field("data"), b"x")), "multipart/form-data", id="no-name"),
        pytest.param(form((field("data"), b"x"))[:-9], TYPE, id="cut-off"),
        pytest.param(b"--xyz\r\nno end of headers", TYPE, id="no-content"),
        pytest.param(form(*[(field(f"f{n}"), b"x") for n in range(33)]), TYPE, id="too-many"),
    ],
)
def test_broken_form_is_an_error_of_its_item(body: bytes, content_type: str) -> None:
    with pytest.raises(BadEnvelope):
        parse_multipart(body, content_type)


def test_a_url_form_has_the_fields_that_torchserve_finds() -> None:
    got = parse_body(b"data=YWI%2Bj+&target=7&x=", FORM)
    assert {name: bytes(value) for name, value in got.items()} == {
        "data": b"YWI+j+",
        "target": b"7",
        "x": b"",
    }


IMAGE = bytes(range(256)) * 8
LOST = 40_000


@pytest.mark.parametrize(
    ("row", "kind", "length", "is_lost"),
    [
        pytest.param({"data": IMAGE}, TYPE, len(IMAGE) + LOST, True, id="a-file-before"),
        pytest.param({"data": b"YWJj"}, FORM, LOST, True, id="a-text-before"),
        pytest.param({"data": IMAGE}, TYPE, len(IMAGE) + 900, False, id="one-file-of-a-long-name"),
        pytest.param(
            {"data": IMAGE, "target": b"1"}, TYPE, len(IMAGE) + 300, False, id="two-names"
        ),
        pytest.param({"data": b"+/=" * 9999}, FORM, 9 * 9999, False, id="escapes"),
        pytest.param({"data": {"b64": "YWJj"}}, TYPE, LOST, False, id="decoded-by-torchserve"),
        pytest.param({"body": IMAGE}, TYPE, LOST, False, id="no-form"),
        pytest.param({"data": IMAGE}, "image/jpeg", LOST, False, id="another-type"),
        pytest.param({"data": IMAGE}, TYPE, "1e9", False, id="no-length"),
    ],
)
def test_a_form_of_which_torchserve_dropped_a_field_is_noticed(
    row: dict[str, object], kind: str, length: object, is_lost: bool
) -> None:
    headers = {"content-type": kind, "content-length": str(length)}
    error = find_lost_field(row, headers)
    assert (error is not None) == is_lost
    assert error is None or "send one image per request" in error.message


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize(
    "text",
    [pytest.param(b"%", id="percent-signs"), pytest.param(b"%41", id="codes")],
)
def test_a_form_of_percent_signs_costs_little_time_and_memory(text: bytes) -> None:
    body = b"data=" + text * (BODY_BYTES // len(text) - 5)
    # The standard library takes 3.5 s and 1.5 GB for the percent signs.
    begin_s = time.thread_time()
    parse(body)
    assert time.thread_time() - begin_s < 0.7
    tracemalloc.start()
    parse(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * BODY_BYTES


def parse(body: bytes) -> None:
    try:
        parse_body(body, FORM)
    except BadEnvelope:
        assert 3 * body.count(b"%") > len(body)
