from __future__ import annotations

from pathlib import Path

from offpath.serving.granian.server import MOST_LOG_BYTES, GranianServer
from offpath.serving.server.server_settings import ServerSettings

TIME = "2026-11-21T03:59:26,104"


def test_granians_log_has_a_bound_and_its_writers_go_on(tmp_path: Path) -> None:
    server = GranianServer(ServerSettings(tmp_path, (), log_dir=tmp_path / "logs"))
    server._make_folders()
    log, old = server.log_path, tmp_path / "logs" / "granian.log.1"
    server.rotate_log()  # before its first line
    with open(log, "ab", buffering=0) as writer:
        for size in (MOST_LOG_BYTES, MOST_LOG_BYTES + 1):
            writer.truncate(size)
            server.rotate_log()
            assert old.exists() == (size > MOST_LOG_BYTES)
        writer.write(f"{TIME} [ERROR] supervisor granian - the cause\n".encode())
        assert log.read_bytes().endswith(b"the cause\n") and log.stat().st_size < 100
        assert server.last_words() == ["the cause"]
        old.unlink()
        old.mkdir()  # it cannot be written, as on a full disk
        writer.truncate(MOST_LOG_BYTES + 1)
        server.rotate_log()
        assert log.stat().st_size == 0
    server.stop()
