"""KServe's protocols through `offpath front`, before two real Granians."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.several_hosts import SeveralHostsSession
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import View, make_server
from tests.support.eventually import eventually
from tests.support.front import log_variables, read_log
from tests.support.granian import GranianProcess, granian
from tests.support.hostile_clients import FORMS, LARGE, Form
from tests.support.images import jpeg

pytestmark = pytest.mark.server
KEY = "a-key-of-the-door-0123"
PREDICTIONS = [form for form in FORMS.values() if form.is_prediction]
SMALL = jpeg(size=(320, 240))


class Hosts:
    """A door before a host with a door of its own, which has a prediction log, and one without."""

    def __init__(self, first: GranianProcess, door: SeveralHostsSession, folder: Path) -> None:
        self.first, self.door, self.folder = first, door, folder
        self.url = door.door.url


@pytest.fixture(scope="module")
def hosts(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "keys").write_text(KEY)
    options = ["near-free", "--front-keys", str(folder / "keys")]
    bare = ServerSettings(
        model_store, ("near-free.mar",), server="granian", inference_port=0, metrics_port=0
    )
    with ExitStack() as stack:
        first = stack.enter_context(
            granian(model_store, folder / "logs", *options, **log_variables(folder))
        )
        second = stack.enter_context(make_server(bare))
        names = [urlsplit(url).netloc for url in (first.url, second.inference_url)]
        behind = Behind(False, 32 << 20, 60, 50, (*names,))
        settings = DoorSettings(port=0, metrics_port=0, front_keys=(KEY,))
        door = SeveralHostsSession(settings, behind, View())
        stack.callback(door.stop)
        door.start()
        yield Hosts(first, door, folder)


def read_scores(reply: httpx.Response) -> dict[str, float]:
    """Returns the scores in any form of reply."""
    answer = reply.json()
    if "outputs" in answer:
        (answer,) = map(json.loads, answer["outputs"][-1]["data"])
    elif "predictions" in answer:
        (answer,) = answer["predictions"]
    scores: dict[str, float] = answer
    return scores


@pytest.mark.parametrize("image", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("form", PREDICTIONS, ids=lambda form: form.path)
def test_every_form_gets_the_scores_of_each_host(hosts: Hosts, form: Form, image: bytes) -> None:
    wanted = read_scores(PREDICTIONS[0].post(hosts.first.url, image))
    for _ in range(6):
        reply = form.post(hosts.url, image)
        assert reply.status_code == 200, reply.text
        assert read_scores(reply) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/v1/models", {"models": ["near-free"]}),
        ("/v1/models/near-free", {"name": "near-free", "ready": True}),
        ("/v2/models/near-free/ready", {"name": "near-free", "ready": True}),
        ("/v2/models/near-free/versions/1.0/ready", {"name": "near-free", "ready": True}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
    ],
)
def test_pages(hosts: Hosts, path: str, page: object) -> None:
    for _ in range(4):
        assert httpx.get(hosts.url + path).json() == page


# The last test: it ends the first host.
def test_a_host_that_ends_costs_no_request_and_its_records_have_the_doors_id(hosts: Hosts) -> None:
    answered = [form.post(hosts.url, SMALL) for form in PREDICTIONS[1:] for _ in range(6)]
    assert hosts.first.terminate() == 0
    answers = [form.post(hosts.url, SMALL).status_code for form in PREDICTIONS for _ in range(6)]
    assert set(answers) == {200}
    eventually(lambda: hosts.door.look_after() or hosts.door._pings.unwell)
    answers = [form.post(hosts.url, SMALL).status_code for form in PREDICTIONS for _ in range(6)]
    assert set(answers) == {200}
    logged = [str(record["event_id"]) for record in read_log(hosts.folder)]
    # Of an image: ID.0~ATTEMPT.
    ids = [one for one in (reply.headers["x-request-id"] for reply in answered) if "~" in one]
    expected = ["{}.0~{}".format(*one.split("~")) for one in ids]
    assert expected and set(expected) <= set(logged)
