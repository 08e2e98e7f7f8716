from __future__ import annotations

import json

import pytest

from offpath.handler import errors
from offpath.handler.reply import encode_error

# Without the classes that other tests define.
ITEM_ERRORS = [e for e in errors.ItemError.__subclasses__() if e.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ITEM_ERRORS, ids=lambda kind: kind.__name__)
def test_error_has_code_type_and_message(
    kind: type[errors.ItemError],
) -> None:
    message = "ni\u00f1o\r\n\ud800"
    reply = encode_error(kind(message))
    assert json.loads(reply.body) == {
        "code": kind.status,
        "type": kind.__name__,
        "message": message,
    }
    assert reply.status == kind.status
    assert ("Retry-After" in reply.headers) == kind.is_passing
