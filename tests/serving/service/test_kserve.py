"""KServe's protocols: bodies become images, and replies become one body."""

from __future__ import annotations

import base64
import codecs
import gzip
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson
import pytest

from offpath.handler.contract import Reply
from offpath.serving.service.kserve import (
    LENGTH_HEADER,
    add_error_text,
    find_failure,
    read_v1,
    read_v2,
)
from offpath.serving.service.messages import Refused
from tests.guarantees import guarantee
from tests.support.costly import measure

MOST = 4
# As for every envelope (tests/reliability/test_worst_cost.py).
MAX_CPU_S = 2.0
IMAGES = [b"\xff\xd8\xff\x00one", b"\x89PNG two"]
TEXTS = [base64.b64encode(image).decode() for image in IMAGES]
MODEL = {"model_name": "m", "model_version": "1.0"}


def tensor(data: object = None, shape: object = (2,), datatype: str = "BYTES") -> dict[str, Any]:
    made = {"name": "x", "datatype": datatype, "shape": shape}
    return made if data is None else {**made, "data": data}


def binary(tensors: list[dict[str, Any]], data: bytes, sizes: list[Any]) -> tuple[bytes, dict]:
    inputs = [
        {**one, "parameters": {"binary_data_size": size}} for one, size in zip(tensors, sizes)
    ]
    text = orjson.dumps({"inputs": inputs})
    return text + data, {LENGTH_HEADER: str(len(text))}


def by_length(*elements: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4, "little") + one for one in elements)


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param(TEXTS[0], id="bare"),
        pytest.param({"data": TEXTS[0]}, id="data"),
        pytest.param({"b64": TEXTS[0]}, id="b64"),
        pytest.param({"image_bytes": {"b64": TEXTS[0]}}, id="image-bytes"),
        pytest.param({"data": {"b64": TEXTS[0]}}, id="data-b64"),
        pytest.param({"target": 3, "data": TEXTS[0]}, id="other-keys"),
        pytest.param({"data": f"{TEXTS[0][:5]}\r\n{TEXTS[0][5:]}\n"}, id="line-ends"),
        pytest.param(f"data:image/jpeg;base64,{TEXTS[0]}", id="data-url"),
        pytest.param(base64.urlsafe_b64encode(IMAGES[0]).decode().rstrip("="), id="url-safe"),
        pytest.param({"b64": TEXTS[0].rstrip("="), "x": '"inputs":'}, id="unpadded"),
    ],
)
def test_v1_takes_images_as_clients_write_them(instance: object) -> None:
    body = json.dumps({"signature_name": "x", "instances": [instance, TEXTS[1]]}).encode()
    assert read_v1(body, {}, MOST).payloads == IMAGES


def test_v2_takes_base64_and_every_input() -> None:
    inputs = [tensor([[TEXTS[0]], [TEXTS[1]]], (2, 1)), tensor([TEXTS[0]], [-1])]
    body = codecs.BOM_UTF8 + orjson.dumps({"inputs": inputs})
    assert read_v2(body, {}, MOST).payloads == [*IMAGES, IMAGES[0]]


def test_v2_takes_binary_data_of_several_inputs() -> None:
    data, more = by_length(*IMAGES), by_length(b"third")
    sizes = [len(data), len(more)]
    body, headers = binary([tensor(), tensor(shape=[1])], data + more, sizes)
    assert read_v2(body, headers, MOST).payloads == [*IMAGES, b"third"]


DEEP = b"[" * 15_000 + b"]" * 15_000
LONG = by_length(*IMAGES)


def v2(**fields: object) -> bytes:
    return orjson.dumps({"inputs": [tensor(TEXTS)], **fields})


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize(
    ("read", "body", "headers", "said"),
    [
        pytest.param(read_v1, IMAGES[0], {}, "not JSON", id="an-image"),
        pytest.param(read_v1, b"[1]", {}, "not an object", id="a-list"),
        pytest.param(read_v1, b'{"instances": ' + DEEP + b"}", {}, "not JSON", id="deep"),
        pytest.param(read_v1, b'{"instances": {"a": 1}}', {}, "a list of images", id="no-list"),
        pytest.param(read_v1, b'{"instances": []}', {}, "no images", id="none"),
        pytest.param(read_v1, gzip.compress(b"{}"), {}, "compressed by gzip", id="gzip"),
        pytest.param(
            read_v1, b'{"instances": ["YQ"], "instances": ["Yg"]}', {}, "two lists", id="key-twice"
        ),
        pytest.param(
            read_v2, b'{"inputs": [{"data": ["YQ"]}], "inputs" :[]}', {}, "two lists",
            id="v2-key-twice",
        ),
        pytest.param(
            read_v1, b'{"instances": ["","","","",""]}', {}, "more than 4 images", id="too-many"
        ),
        pytest.param(
            read_v1, b'{"instances": ["%s", "%%%%"]}' % TEXTS[0].encode(), {},
            "instance 1 is not base64", id="no-base64",
        ),
        pytest.param(
            read_v1, b'{"instances": [[[1, 2], [3, 4]]]}', {}, "instance 0 must be", id="pixels"
        ),
        pytest.param(
            read_v1, b'{"instances": [{"data": {"b64": {"b64": "aa"}}}]}', {},
            "instance 0 must be", id="nested",
        ),
        pytest.param(read_v2, b"{}", {}, "no images", id="v2-no-inputs"),
        pytest.param(read_v2, b'{"inputs": [1]}', {}, "not a list of objects", id="v2-number"),
        pytest.param(read_v2, b'{"inputs": {"a": 1}}', {}, "not a list of objects", id="v2-object"),
        pytest.param(
            read_v2, orjson.dumps({"inputs": [tensor([0.5], [1], "FP32")]}), {},
            "input 0 has not the datatype BYTES", id="v2-dtype",
        ),
        pytest.param(
            read_v2, orjson.dumps({"inputs": [tensor([[[TEXTS[0]]]], [1])]}), {},
            "element 0 of input 0 must be", id="v2-nested",
        ),
        pytest.param(
            read_v2, orjson.dumps({"inputs": [tensor()]}), {}, "neither a list", id="v2-no-data"
        ),
        pytest.param(read_v2, v2(id=3), {}, "id is not a text", id="v2-id"),
        pytest.param(
            read_v2, v2(outputs=[{"name": ["label"]}]), {}, "no such output", id="v2-output"
        ),
        *(
            pytest.param(
                read_v2, v2(), {LENGTH_HEADER: text}, "Inference-Header-Content-Length",
                id=f"v2-length-{text[:4]}",
            )
            for text in ("-1", "", "x", "9999", "9" * 5000, "\u0661")
        ),
        pytest.param(
            read_v2, v2(), {LENGTH_HEADER: str(len(v2()) - 1)}, "not JSON", id="v2-length-short"
        ),
        pytest.param(
            read_v2, v2() + b"rest", {LENGTH_HEADER: str(len(v2()))}, "4 bytes of binary data",
            id="v2-rest",
        ),
        *(
            pytest.param(
                read_v2, *binary([tensor()], LONG, [size]), "wrong binary_data_size",
                id=f"v2-size-{size}",
            )
            for size in (-1, len(LONG) + 1, "9", 1.5, True)
        ),
        pytest.param(
            read_v2, *binary([tensor()], LONG[:-1], [len(LONG) - 1]), "ends inside element 1",
            id="v2-cut",
        ),
        pytest.param(
            read_v2, *binary([tensor()], LONG + b"\0", [len(LONG) + 1]), "ends inside element 2",
            id="v2-cut-length",
        ),
        pytest.param(
            read_v2, *binary([tensor()], bytes(4_000_000), [4_000_000]), "more than 4 images",
            id="v2-many-empty",
        ),
        pytest.param(read_v2, v2(id="i" * 257), {}, "at most 256 characters", id="v2-long-id"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_with_a_reason(
    read: Any, body: bytes, headers: Mapping[str, str], said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        read(body, headers, MOST)
    assert (refused.value.kind.status, refused.value.kind.type) == (400, "BadEnvelope")
    assert refused.value.kind.text.isascii()


SIZE = 2**25
TEXT_OF_V1, MANY_OF_V1 = b'{"instances": ["%b"]}', b'{"instances": [%b0]}'
COSTLY: dict[str, Callable[[], bytes]] = {
    "text": lambda: TEXT_OF_V1 % (b"A" * SIZE),
    "line-ends": lambda: TEXT_OF_V1 % (rb"\n" * (SIZE // 2)),
    "escapes": lambda: TEXT_OF_V1 % (rb"\u0041" * (SIZE // 6)),
    "wide-escape": lambda: TEXT_OF_V1 % (rb"\ud83d\ude00" + b"A" * SIZE),
    "digits": lambda: b'{"instances": [%b]}' % (b"1" * SIZE),
    "key": lambda: b'{"instances": [{"%b": 1}]}' % (b"k" * SIZE),
    "quotes": lambda: TEXT_OF_V1 % (rb"\":" * (SIZE // 3)),
    "v2-id": lambda: b'{"id": "%b", "inputs": []}' % (b"i" * SIZE),
    "million-texts": lambda: MANY_OF_V1 % (b'"",' * 1_000_000),
    "million-objects": lambda: MANY_OF_V1 % (b"{}," * 1_000_000),
    "million-numbers": lambda: MANY_OF_V1 % (b"0," * 1_000_000),
}


@guarantee("Costly JSON, base64 and forms")
@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_body_takes_little_time_and_memory(name: str) -> None:
    read, body = read_v2 if name.startswith("v2") else read_v1, COSTLY[name]()

    def work() -> None:
        with suppress(Refused):
            read(body, {}, MOST)

    cost = measure(work)
    assert cost.cpu_s < MAX_CPU_S and cost.answer == "200"
    # A text with one wide character takes four bytes for each; its two copies take one.
    assert cost.memory_mb << 20 < 7 * len(body)


def test_a_label_or_an_error_with_a_lone_surrogate_is_answered() -> None:
    odd = Reply(400, {}, b'{"message": "\\ud800"}')
    failed = find_failure([Reply(200, {}, b"{}"), odd])
    assert failed is not None
    assert json.loads(add_error_text(failed).body)["error"] == "instance 1: \ud800"
    # As the handler writes it (response.py).
    body = json.dumps({"a\ud800": 0.5}).encode()
    for read, form in ((read_v1, {"instances": TEXTS}), (read_v2, {"inputs": [tensor(TEXTS)]})):
        text = read(orjson.dumps(form), {}, MOST).write([Reply(200, {}, body)] * 2, MODEL)
        assert b"ud800" in text and json.loads(text)
