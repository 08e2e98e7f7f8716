"""`offpath reload` and `offpath canary` choose among the front doors that run."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.commands import url_option
from offpath.commands.url_option import find_door
from offpath.errors import ExpectedError
from offpath.serving.servers_here import RunningDoor

ONE = RunningDoor(Path("/a"), Path("/a"), "127.0.0.1:80", frozenset({80, 8082}), 1)
# With a /tmp of its own.
OTHER = RunningDoor(Path("/b"), Path("/proc/3/root/b"), "[::1]:90", frozenset({90}), 2)


@pytest.mark.parametrize(
    "doors, url, says",
    [
        pytest.param([ONE], "http://192.0.2.1:80", "--url http://127.0.0.1:80", id="other-host"),
        pytest.param([ONE, OTHER], None, "name one: --url http://127.0.0.1:80 or", id="several"),
    ],
)
def test_door_that_is_not_found_is_named(
    monkeypatch: pytest.MonkeyPatch, doors: list[RunningDoor], url: str | None, says: str
) -> None:
    monkeypatch.setattr(url_option, "find_doors", lambda: doors)
    with pytest.raises(ExpectedError) as raised:
        find_door(url)
    assert says in str(raised.value)
