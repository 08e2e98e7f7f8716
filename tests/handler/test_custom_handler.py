from __future__ import annotations

import json
import logging
import sys

import pytest

from offpath.handler.contract import Item, Reply, Request
from offpath.handler.custom_handler import CustomReplies, Result
from offpath.handler.errors import ItemError


class Unsure(ItemError):
    status = 422


class Unsendable(ItemError):
    status = 200


class Defects:
    def postprocess_item(self, result: Result) -> object:
        best = result.predictions[0]
        if best.label == "fails":
            raise KeyError("line\u2028of a client")
        if best.label == "headers":
            return dict(result.headers)
        if best.label == "no-json":
            return {"p": object()}
        if best.label == "exits":
            sys.exit("a library's way out")
        if best.label == "no-json-log":
            result.log["p"] = object()
        if best.label == "unsure":
            raise Unsure("no class reaches 0.2")
        if best.label == "unsendable":
            raise Unsendable("an error is no success")
        result.log["verdict"] = "reject"
        return {"label": best.label, "line": result.headers.get("x-line")}


def encode(*labels: str, headers: dict[str, str] | None = None) -> tuple[list[Reply], list[Item]]:
    request = Request(b"", headers=headers or {})
    items = [Item(request, predictions=[(one, 0.9)]) for one in labels]
    replies = CustomReplies(Defects())
    return [replies.encode(item) for item in items], items


def test_headers_of_the_front_door_are_hidden_from_custom_handlers() -> None:
    (reply,), _ = encode("headers", headers={"x-offpath-key": "k", "a": "b"})
    assert json.loads(reply.body) == {"a": "b"}


@pytest.mark.parametrize("label", ["fails", "exits", "no-json", "no-json-log", "unsendable"])
def test_failing_item_gets_a_500_and_the_log_names_the_line(
    label: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        replies, items = encode("scratch", label, label, "dent")
    assert [reply.status for reply in replies] == [200, 500, 500, 200]
    assert json.loads(replies[1].body)["type"] == "PostprocessFailed"
    assert items[1].extra is None
    (said,) = [r.message for r in caplog.records]  # once
    assert "Defects.postprocess_item: " in said and "test_custom_handler.py, line " in said
    assert said.isascii()


def test_error_of_a_custom_handler_keeps_its_status_and_type() -> None:
    replies, items = encode("unsure", "dent")
    assert [reply.status for reply in replies] == [422, 200]
    assert json.loads(replies[0].body) == {
        "code": 422,
        "type": "Unsure",
        "message": "no class reaches 0.2",
    }
    error = items[0].error
    assert error is not None and error.__traceback__ is None  # holds no payload
