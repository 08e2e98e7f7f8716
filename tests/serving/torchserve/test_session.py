"""The steps of `serve`, with a stand-in for the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, create_autospec

import pytest

from offpath.archive.mar_file import MarFile
from offpath.handler.errors import ExpectedError
from offpath.serving.torchserve import session
from offpath.serving.torchserve.management import ManagementClient, ModelStatus
from offpath.serving.torchserve.server_settings import ServerSettings
from tests.support.answering_server import answering_server
from tests.support.echo_archive import MODEL_CONFIG

SETTINGS = ServerSettings(Path("store"), ("cats.mar",))
STATUS = ModelStatus("cats", "1.0", "cats.mar", 1, 1, 4, 5, 20, 60, ("READY",), (7,))
ARCHIVE = MarFile(Path("cats.mar"), "cats", "1.0", "cats.py", MODEL_CONFIG)
LOG_LINE = "2026-11-21T03:59:26,104 [ERROR] W-9000 org.A - out of memory\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MagicMock]:
    """Serves one model as its archive asks; answers requests."""
    management = create_autospec(ManagementClient, instance=True)
    management.describe.return_value = [STATUS]
    management.describe_worker.return_value = STATUS
    with answering_server() as answers:
        made = MagicMock(
            archives=[("cats", ARCHIVE)],
            inference_url=answers.url,
            log_path=tmp_path / "log",
            settings=SETTINGS,
            warm_up_key="word",
        )
        made.ports.inference = 1  # nobody's
        made.model_names.return_value = ["cats"]
        made.management.return_value = nullcontext(management)
        made.read_token.return_value = made.socket.return_value = None
        made.last_words.return_value = ["killed", "by somebody"]
        made.answers, made.describe = answers, management.describe
        monkeypatch.setattr(session, "TorchServe", lambda settings: made)
        monkeypatch.setattr(session, "WATCH_S", 0.0)
        yield made


@pytest.fixture
def view() -> MagicMock:
    """Records its calls."""
    return MagicMock(spec=session.View)


def told(view: MagicMock) -> list[str]:
    return [name for name, *_ in view.method_calls]


def test_once_announces_what_is_in_force_and_stops(
    server: MagicMock, view: MagicMock
) -> None:
    session.serve(SETTINGS, view, 1, once=True)
    assert told(view) == ["waiting", "show_unchecked", "show_ready"]
    urls, statuses, *_ = view.show_ready.call_args.args
    assert (urls["inference"], statuses) == (server.inference_url, [STATUS])
    view.show_unchecked.assert_called_once_with([])
    server.stop.assert_called_once_with()
    assert server.answers.requests == []  # no handler of ours: nothing is warmed up


def test_our_archives_are_warmed_up_before_ready(
    server: MagicMock, view: MagicMock
) -> None:
    server.archives = [("cats", replace(ARCHIVE, has_our_handler=True))]
    seen: list[int] = []
    view.show_ready.side_effect = lambda *_: seen.append(len(server.answers.requests))
    session.serve(SETTINGS, view, 1, once=True)
    assert seen[0] > 10
    (problem,) = view.show_problem.call_args.args
    assert "no labels, so answers name classes by number" in problem


def test_sample_is_sent_and_shown(server: MagicMock, view: MagicMock) -> None:
    session.serve(SETTINGS, view, 1, sample=True, once=True)
    photograph, prediction = view.show_prediction.call_args.args
    assert prediction.labels[0] == ("cat", 0.75)
    assert server.answers.requests[0][2] == photograph.read_bytes()


def test_model_that_is_not_as_its_archive_asks_is_never_announced(
    server: MagicMock, view: MagicMock
) -> None:
    server.describe.return_value = []
    with pytest.raises(ExpectedError, match="not registered"):
        session.serve(SETTINGS, view, 1)
    assert "show_ready" not in told(view)
    server.stop.assert_called_once_with()


def test_logged_errors_are_shown_until_the_server_ends_which_is_an_error(
    server: MagicMock, view: MagicMock
) -> None:
    def fail_once() -> bool:
        is_first = not server.log_path.exists()
        server.log_path.write_text(LOG_LINE)
        return is_first

    server.is_running.side_effect = fail_once
    with pytest.raises(ExpectedError, match="ended by itself(.|\n)*by somebody"):
        session.serve(SETTINGS, view, 1)
    (line,) = view.show_log_line.call_args.args
    assert (line.level, line.message) == ("ERROR", "out of memory")
    server.stop.assert_called_once_with()
