"""KServe's protocols: V1, and V2 (the Open Inference Protocol) with its extension for binary data.

A request of theirs has several images and one status. Each image becomes a request of its own to
the handler. https://kserve.github.io/website/docs/concepts/architecture/data-plane
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import orjson

from offpath.handler.contract import Reply, Request
from offpath.handler.error_kinds import GZIP, GZIPPED, ErrorKind
from offpath.handler.request.encodings import JSON_KEYS, ORDER_MARK, decode_base64, has_more_values
from offpath.handler.wire_names import EXPLAIN_HEADER
from offpath.serving.service.messages import JSON_TYPE, V1, V2, V2_SERVER, Refused

# More images in one request are refused, whatever the queue has room for.
MAX_INSTANCES = 100
MAX_ID_CHARACTERS = 256
# A body of `{},{},...` would become millions of objects (MAX_JSON_VALUES in payload.py).
MAX_JSON_VALUES = 20_000
# Keys under which an instance may hold its text, also one within the other.
IMAGE_KEYS = (*JSON_KEYS, "image_bytes")
LISTS = re.compile(rb'"(instances|inputs)"\s*:')
BYTES_TYPE = "application/octet-stream"
# The length of the JSON before the binary data; Triton's clients send and expect it.
LENGTH_HEADER = "inference-header-content-length"
BINARY_SIZE = "binary_data_size"
LENGTH_FORM = re.compile("[0-9]{1,10}")
# The only output of V2: the handler's own JSON for each image.
OUTPUT = "reply"
TEXTS = {"datatype": "BYTES", "shape": [-1]}


@dataclass(frozen=True)
class Inference:
    """The images of a request, and what makes one body of the handler's replies.

    `write` also takes `model_name`, `model_version` where paths have versions, and our `id`.
    """

    payloads: list[bytes]
    write: Callable[[Sequence[Reply], Mapping[str, str]], bytes]


# Takes a request's body and headers, and the most images.
Read = Callable[[Any, Mapping[str, str], int], Inference]


def read_v1(body: Any, headers: Mapping[str, str], most: int) -> Inference:
    """Reads a request of V1 with at most `most` images.

    Raises:
        Refused: status 400, with the reason.
    """
    instances = read_json(body).get("instances")
    if not isinstance(instances, list):
        raise refuse('the JSON must be an object with a list of images, {"instances": [...]}')
    check_count(len(instances), most)
    key = b"explanations" if headers.get(EXPLAIN_HEADER) == "True" else b"predictions"
    payloads = [read_image(one, f"instance {n}") for n, one in enumerate(instances)]
    return Inference(payloads, partial(write_v1, key))


def write_v1(key: bytes, replies: Sequence[Reply], fields: Mapping[str, str]) -> bytes:
    return b'{"%s":[%s]}' % (key, b",".join(reply.body for reply in replies))


def read_v2(body: Any, headers: Mapping[str, str], most: int) -> Inference:
    """Reads a request of V2, as `read_v1`; the images of several inputs count as those of one."""
    size = read_json_length(headers, len(body))
    content, rest = read_json(memoryview(body)[:size]), memoryview(body)[size:]
    payloads: list[bytes] = []
    for number, tensor in enumerate(list_objects(content, "inputs")):
        place, binary = f"input {number}", None
        parameters = tensor.get("parameters")
        binary_size = parameters.get(BINARY_SIZE) if isinstance(parameters, dict) else None
        if binary_size is not None:
            if type(binary_size) is not int or not 0 <= binary_size <= len(rest):
                raise refuse(f"{place} has a wrong {BINARY_SIZE}; {len(rest)} bytes are left")
            binary, rest = rest[:binary_size], rest[binary_size:]
        payloads += read_tensor(tensor, binary, place, most - len(payloads))
    if len(rest) > 0:
        raise refuse(f"{len(rest)} bytes of binary data belong to no input")
    check_count(len(payloads), most)
    name = content.get("id")
    if not (name is None or isinstance(name, str) and len(name) <= MAX_ID_CHARACTERS):
        raise refuse(f"the id is not a text of at most {MAX_ID_CHARACTERS} characters")
    if any(one.get("name") != OUTPUT for one in list_objects(content, "outputs")):
        raise refuse(f"there is no such output; the only one is {OUTPUT!r}")
    return Inference(payloads, partial(write_v2, {} if name is None else {"id": name}))


def write_v2(
    given: Mapping[str, str], replies: Sequence[Reply], fields: Mapping[str, str]
) -> bytes:
    texts = [reply.body.decode() for reply in replies]
    output = {"name": OUTPUT, "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return orjson.dumps({**fields, **given, "outputs": [output]})


READERS: dict[str, Read] = {V1: read_v1, V2: read_v2}


def read_json(text: bytes | memoryview) -> dict[str, Any]:
    """Parses an object, after a look at how many values it could have."""
    text = bytes(text).removeprefix(ORDER_MARK)
    if has_more_values(text, MAX_JSON_VALUES):
        raise refuse(f"the JSON has more than {MAX_JSON_VALUES} values")
    try:
        content = orjson.loads(text)
    except ValueError:
        raise refuse(GZIPPED if text[:2] == GZIP else "the body is not JSON in UTF-8") from None
    if not isinstance(content, dict):
        raise refuse("the JSON is not an object")
    lists = LISTS.findall(text)
    if len(lists) > len(set(lists)):  # of which orjson keeps the last
        raise refuse("the JSON has two lists of images; send one list")
    return content


def read_image(value: object, place: str) -> bytes:
    """Decodes base64 text, bare or in an object such as `{"image_bytes": {"b64": ...}}`."""
    for _ in range(2):
        if isinstance(value, dict):
            value = next((value[key] for key in IMAGE_KEYS if key in value), None)
    if not isinstance(value, str):
        keys = ", ".join(IMAGE_KEYS)
        raise refuse(f"{place} must be base64 text, or an object with it under one of {keys}")
    try:
        return decode_base64(value.encode())
    except ValueError:
        raise refuse(f"{place} is not base64") from None


def read_json_length(headers: Mapping[str, str], size: int) -> int:
    """Returns the length of the JSON; the binary data comes after it."""
    given = headers.get(LENGTH_HEADER, str(size))
    if LENGTH_FORM.fullmatch(given) is None or int(given) > size:
        raise refuse(f"Inference-Header-Content-Length is not a number up to {size}")
    return int(given)


def list_objects(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = content.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise refuse(f"{key!r} is not a list of objects")
    return found


def read_tensor(
    tensor: Mapping[str, Any], binary: memoryview | None, place: str, most: int
) -> list[bytes]:
    """Reads the images of one input; `binary` is its part of the binary data."""
    data = tensor.get("data")
    if tensor.get("datatype") != "BYTES":
        raise refuse(f"{place} has not the datatype BYTES, for image files")
    if binary is not None:
        images = list(split_bytes(binary, place, most))
    elif isinstance(data, list):
        # One list for all elements, or one for each row.
        texts = list(chain(*(one if isinstance(one, list) else [one] for one in data)))
        check_count(len(texts), most)
        images = [read_image(text, f"element {n} of {place}") for n, text in enumerate(texts)]
    else:
        raise refuse(f"{place} has neither a list of data nor a {BINARY_SIZE}")
    return images


def split_bytes(binary: memoryview, place: str, most: int) -> Iterator[bytes]:
    """Yields the elements of a BYTES tensor, each after its length."""
    end = count = 0
    while end < len(binary):
        start = end + 4
        end = start + int.from_bytes(binary[end:start], "little")
        if end > len(binary):
            raise refuse(f"the binary data of {place} ends inside element {count}")
        count += 1
        check_count(count, most)
        yield bytes(binary[start:end])


def check_count(images: int, most: int) -> None:
    if images == 0:
        raise refuse("the request has no images")
    if images > most:
        raise refuse(f"the request has more than {most} images; send fewer at a time")


def refuse(text: str) -> Refused:
    return Refused(ErrorKind(400, "BadEnvelope", text))


def split_request(request: Request, payloads: Sequence[bytes]) -> list[Request]:
    """Makes a request for each image, with ids `ID.n`."""
    headers = {**request.headers, "content-type": BYTES_TYPE}
    return [
        replace(request, body=payload, id=f"{request.id}.{index}", headers=headers)
        for index, payload in enumerate(payloads)
    ]


def find_failure(replies: Sequence[Reply]) -> Reply | None:
    """Returns the first error among the replies, with its index in the message."""
    for index, reply in enumerate(replies):
        if reply.status != 200:
            # Not orjson, which reads and writes no lone surrogates of a client's text.
            fields = json.loads(reply.body)
            fields["message"] = f"instance {index}: {fields['message']}"
            return replace(reply, body=json.dumps(fields).encode())
    return None


def add_error_text(reply: Reply) -> Reply:
    """Adds the key by which clients of KServe and Triton know the text of an error."""
    fields = json.loads(reply.body)
    return replace(reply, body=json.dumps({"error": fields["message"], **fields}).encode())


def merge_headers(replies: Sequence[Reply], body: bytes) -> Reply:
    """Makes a reply with the last one's headers, whose batch was the last or one of the last."""
    return Reply(200, {**replies[-1].headers, "content-type": JSON_TYPE}, body)


def speaks_kserve(path: str) -> bool:
    return path.startswith(("/v1/", "/v2/"))


def list_pages(
    name: str, version: str | None, versions: Sequence[str], is_foreign: bool
) -> dict[str, Reply]:
    """Returns the replies to GET, by path, while this version of the model is ready."""
    model = {
        "name": name,
        "versions": versions,
        "platform": "offpath",
        # Only another archive's handler knows its own.
        "inputs": [] if is_foreign else [{"name": "image", **TEXTS}],
        "outputs": [] if is_foreign else [{"name": OUTPUT, **TEXTS}],
    }
    ready = {"name": name, "ready": True}
    pages: dict[str, Any] = {
        "/v1/models": {"models": [name]},
        f"/v1/models/{name}": ready,
        "/v2": V2_SERVER,
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
    }
    for tail in [""] if version is None else ["", f"/versions/{version}"]:
        pages |= {f"/v2/models/{name}{tail}": model, f"/v2/models/{name}{tail}/ready": ready}
    headers = {"content-type": JSON_TYPE}
    return {path: Reply(200, headers, orjson.dumps(page)) for path, page in pages.items()}
