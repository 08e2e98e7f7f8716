from __future__ import annotations

import json

import pytest

from handler import errors
from handler.response import encode_error, encode_json, encode_prediction

ITEM_ERRORS = errors.ItemError.__subclasses__()


def test_prediction_is_the_stock_handlers_object_best_first() -> None:
    reply = encode_prediction([("cat", 0.75), ("dog", 0.25)])
    assert (reply.status, reply.phrase) == (200, "OK")
    assert reply.body == b'{"cat": 0.75, "dog": 0.25}'


def test_labels_beyond_ascii_are_escaped() -> None:
    reply = encode_prediction([("ni\u00f1o \U0001f431", 1.0)])
    assert reply.body.isascii()
    assert json.loads(reply.body) == {"ni\u00f1o \U0001f431": 1.0}


@pytest.mark.parametrize("kind", ITEM_ERRORS, ids=lambda kind: kind.__name__)
def test_error_says_code_type_and_message(kind: type[errors.ItemError]) -> None:
    reply = encode_error(kind("what was wrong"))
    assert json.loads(reply.body) == {
        "code": kind.status,
        "type": kind.__name__,
        "message": "what was wrong",
    }
    assert 400 <= reply.status < 500


@pytest.mark.parametrize("kind", ITEM_ERRORS, ids=lambda kind: kind.__name__)
def test_phrase_is_fixed_and_ascii_whatever_the_message(
    kind: type[errors.ItemError],
) -> None:
    reply = encode_error(kind("ni\u00f1o\r\n\ud800"))
    assert reply.phrase == kind.phrase
    # Anything else hangs the worker (ts/protocol/otf_message_handler.py).
    assert reply.phrase.isascii() and reply.phrase.isprintable()
    assert reply.body.isascii()


def test_any_json_value_is_a_reply() -> None:
    assert encode_json({"a": [1, None]}).body == b'{"a": [1, null]}'
