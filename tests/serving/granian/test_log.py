from __future__ import annotations

from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.serving.granian.granian_server import MAX_LOG_BYTES, GranianServer
from offpath.serving.server.in_force import check_in_force
from offpath.serving.server.plan import plan_server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.starting import check_ready, start_server
from tests.guarantees import guarantee
from tests.support.echo_archive import make_settings

TIME = "2026-11-21T03:59:26,104"


@guarantee(
    "Logs that fill the disk or forge lines",
    "serving/granian/granian_server.py",
    "if not log.exists() or log.stat().st_size <= MAX_LOG_BYTES:",
    "if True:",
)
@guarantee("The disk of the logs or `/tmp` is full")
def test_granians_log_has_a_bound_and_its_writers_go_on(tmp_path: Path) -> None:
    class WithoutProcesses(GranianServer):
        def _launch(self) -> None:
            pass

    settings = ServerSettings(tmp_path, (), server="granian", log_dir=tmp_path / "logs")
    server = WithoutProcesses(plan_server(settings))
    log, old = server.log_path, tmp_path / "logs" / "granian.log.1"
    server.rotate_log()  # before its first line
    with open(log, "ab", buffering=0) as writer:
        for size in (MAX_LOG_BYTES, MAX_LOG_BYTES + 1):
            writer.truncate(size)
            server.rotate_log()
            assert old.exists() == (size > MAX_LOG_BYTES)
        writer.write(f"{TIME} [ERROR] supervisor granian - the cause\n".encode())
        assert log.read_bytes().endswith(b"the cause\n") and log.stat().st_size < 100
        assert server.last_words() == ["the cause"]
        old.unlink()
        old.mkdir()  # it cannot be written, as on a full disk
        writer.truncate(MAX_LOG_BYTES + 1)
        server.rotate_log()
        assert log.stat().st_size == 0
    server.stop()


@pytest.mark.server
@guarantee(
    "The spool cannot be written at the start",
    "serving/server/in_force.py",
    "*find_log_problem(status)",
    "",
)
def test_a_spool_that_cannot_be_written_is_a_failed_start_unless_allowed(
    model_store: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    log = {"OFFPATH_PREDICTION_LOG": f"file://{tmp_path}/out"}
    env = {**log, "OFFPATH_SPOOL_DIR": f"{tmp_path}/file/spool"}
    server = start_server(make_settings(model_store / "near-free.mar", server="granian", env=env))
    try:
        with pytest.raises(ExpectedError, match="near-free 1.0: prediction log is lost, .*Not a d"):
            check_ready(server)
        with server.management() as management:
            check_in_force(server.plan.models, management, lenient=True)
    finally:
        server.stop()
