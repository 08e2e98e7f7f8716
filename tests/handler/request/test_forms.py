from __future__ import annotations

import mmap

import pytest

from offpath.handler.errors import BadEnvelope
from offpath.handler.request.forms import parse_multipart

TYPE = "multipart/form-data; boundary=xyz"


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
    assert {name: bytes(value) for name, value in got.items()} == {
        "data": content,
        "target": b"7",
    }


def test_a_mapped_body_is_not_copied() -> None:
    body = form((field("data"), b"image"))
    mapped = mmap.mmap(-1, len(body))
    mapped[:] = body
    data = parse_multipart(mapped, TYPE)["data"]
    assert data.obj is mapped
    data.release()


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
        pytest.param(form(*[(field("data"), b"x")] * 33), TYPE, id="too-many"),
    ],
)
def test_broken_form_is_an_error_of_its_item(body: bytes, content_type: str) -> None:
    with pytest.raises(BadEnvelope):
        parse_multipart(body, content_type)
