"""After the warm-up a request opens no file, connects nowhere and starts no process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.handler.loaded_service import WORKERS, watched_events


# The prediction log only adds to what a request does; the next test has it on.
@pytest.mark.slow
@pytest.mark.parametrize("server", WORKERS)
def test_200_requests_touch_no_file_no_socket_and_start_no_process(
    model_store: Path, server: str
) -> None:
    assert watched_events(server, model_store / "near-free.mar") == []


@pytest.mark.parametrize("server", WORKERS)
def test_with_the_prediction_log_on_the_only_write_goes_to_an_open_segment(
    model_store: Path, tmp_path: Path, server: str
) -> None:
    environ = {
        "OFFPATH_PREDICTION_LOG": (tmp_path / "log").as_uri(),
        "OFFPATH_SPOOL_DIR": str(tmp_path / "spool"),
    }
    assert watched_events(server, model_store / "near-free.mar", environ) == []
