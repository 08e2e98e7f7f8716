"""A worker that the fork server has forked runs the handler of its archive."""

from __future__ import annotations

from zipfile import ZipFile

import psutil
import pytest

from offpath.serving.torchserve.torchserve_server import TorchServe

pytestmark = pytest.mark.server


def test_forked_worker_runs_the_copy_of_the_handler_in_its_archive(server: TorchServe) -> None:
    """The fork server has imported the handler of this repository."""
    model_store = server.settings.model_store
    own = model_store / "own.mar"
    source = "offpath/handler/classifier.py"
    with ZipFile(model_store / "near-free.mar") as old, ZipFile(own, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == source:
                assert content.count(b'"handler": "offpath"') == 1
                content = content.replace(b'"handler": "offpath"', b'"handler": "own"')
            new.writestr(name, content)
    with server.management() as management:
        management.register("own.mar", model_name="own", initial_workers=1)
        try:
            status = management.describe_worker("own", "1.0")
            for worker in status.worker_pids:
                command = psutil.Process(worker).cmdline()
                assert any("fork_server.py" in part for part in command)
            assert status.described["handler"] == "own"
        finally:
            management.unregister("own")
