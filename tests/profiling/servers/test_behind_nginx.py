"""The nginx before a rival: one token, a limit for bodies, and nothing left of it at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil

from offpath.profiling.servers.adapter import PackagedAdapter
from offpath.profiling.servers.behind_nginx import TOKEN, BehindNginx
from offpath.profiling.servers.torchserve import NGINX
from tests.support.answering_server import answering_server

PATH = "/v2/models/classifier/infer"


class Rival(PackagedAdapter):
    """A server that answers with the size of the body."""

    name = "rival"

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log

    @contextmanager
    def running(self) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            predict_url=self.url,
            groups=lambda: {"frontend": [], "workers": []},
            is_running=lambda: True,
            log_path=lambda: self.log,
        )


class RivalNginx(BehindNginx, Rival):
    pass


def test_nginx_asks_for_its_token_and_limits_bodies(tmp_path: Path) -> None:
    with answering_server() as answers:
        rival = RivalNginx(answers.url + PATH, tmp_path / "server.log")
        token = {"Authorization": TOKEN}
        assert token.items() <= rival.make_call().headers.items()
        with rival.running() as running:
            with httpx.Client(base_url=running.predict_url, trust_env=False) as client:
                assert client.post("", content=b"7", headers=token).content == answers.body
                assert client.post("", content=b"7").status_code == 401
                large = client.post("", content=bytes(21 * 2**20), headers=token)
            assert large.status_code == 413
            pids = running.groups()[NGINX]
            # The leader and a worker per core.
            assert len(pids) > 1 and running.is_running()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert [(path, body) for path, _, body in answers.requests] == [(PATH + "/", b"7")]
