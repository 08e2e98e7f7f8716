"""The client of TorchServe's management API."""

from collections.abc import Callable

import pytest

from offpath.errors import ExpectedError
from offpath.serving.server import management
from offpath.serving.server.management import RACE, RACE_TRIES, ManagementClient
from tests.support.answering_server import answering_server


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda client: client.scale("defects", 2), id="scale"),
        pytest.param(lambda client: client.unregister("defects", "1.0"), id="unregister"),
    ],
)
@pytest.mark.parametrize(("exception", "tries"), [(RACE, RACE_TRIES), ("IOException", 1)])
def test_only_what_torchserves_own_race_left_half_done_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[ManagementClient], None],
    exception: str,
    tries: int,
) -> None:
    monkeypatch.setattr(management, "RACE_PAUSE_S", 0)
    with answering_server() as server, ManagementClient(server.url) as client:
        server.status, server.body = 500, b'{"code": 500, "type": "%b"}' % exception.encode()
        with pytest.raises(ExpectedError, match=exception):
            change(client)
        assert len(server.requests) == tries
