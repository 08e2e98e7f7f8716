from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.commands.serve_options import (
    DEFAULTS,
    LIMITS,
    check_host,
    make_door_settings,
    read_limit,
)
from offpath.errors import ExpectedError
from offpath.serving.front.door_settings import DoorSettings

NAMES = "tls_cert tls_key tokens client_ids front_keys explanations metrics_host memory".split()


def make(**changes: Any) -> DoorSettings | None:
    options = {"front": False, "limits": {}, **{name: getattr(DEFAULTS, name) for name in NAMES}}
    return make_door_settings({**options, **changes}, drain_s=7)


def test_the_door_is_there_where_it_is_asked_for() -> None:
    assert make() is None
    limits = dict([read_limit("client-rate=0", LIMITS), read_limit("queue=9", LIMITS)])
    assert make(front=True, limits=limits) == DoorSettings(drain_s=7, queue=9)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org"])
def test_a_server_without_the_door_is_for_this_machine(host: str) -> None:
    for loopback in ("127.0.0.1", "localhost"):
        check_host(loopback)
    check_host(host, behind_proxy=True)
    with pytest.raises(ExpectedError, match="add --front --tokens FILE, or --behind-proxy"):
        check_host(host)


def test_an_address_for_others_needs_the_doors_tokens() -> None:
    check_host("0.0.0.0", DoorSettings(tokens=Path("tokens")))
    check_host("::1", DoorSettings())
    with pytest.raises(ExpectedError, match="add --tokens FILE"):
        check_host("0.0.0.0", DoorSettings())
