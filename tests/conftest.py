"""Archives and a server that several test modules share, built once per session.

torch and what needs it are imported in functions: the process that gives tests to the others reads
this file too.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from httpx._transports import default as transports

from offpath.serving.server import server as any_server
from offpath.serving.server.server_settings import ServerSettings
from tests.support.answering_server import Answers, answering_server
from tests.support.bucket import Bucket
from tests.support.echo_archive import MakeMar, make_settings, write_mar
from tests.support.eventually import MAX_S
from tests.support.s3_servers import S3Server, run_seaweedfs

if TYPE_CHECKING:
    from offpath.serving.torchserve.torchserve_server import TorchServe

SERVER_MARKS = ("server", "s3")
# Files that share a server or a door of a session, so that one process runs them all.
# Each process takes one of the other files at a time, also of those that start their own servers.
TOGETHER = {
    "s3": (
        *("../handler/prediction_log/test_log_kill.py", "../handler/prediction_log/test_log_s3.py"),
        "../offpath/commands/test_logs_s3.py",
    ),
    "echo": ("fork/test_fork_server.py", "torchserve/test_server.py"),
    "granian": (
        *("contract/test_foreign.py", "contract/test_kserve.py"),
        *("granian/test_connections.py", "granian/test_granian.py"),
    ),
    "server": (
        *(f"contract/test_{name}.py" for name in ("doors", "hostile_clients", "replies")),
        "front/test_door_lifecycle.py",
        *("check/test_running.py", "offline/test_offline.py", "server/test_in_force.py"),
        *("test_client.py", "test_grpc.py", "test_path.py", "test_sick_worker.py"),
    ),
}
GROUPS = {
    os.path.normpath(f"tests/serving/{path}"): group
    for group, paths in TOGETHER.items()
    for path in paths
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Gives each process one file at a time, or one whole group of TOGETHER."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return find_group(nodeid) or super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spares each process the imports of the long tests where none of them is asked for."""
    is_long = collection_path.name == "reliability"
    return True if is_long and not is_reliability(config) else None


def is_reliability(config: pytest.Config) -> bool:
    """Tells whether the long tests are selected, which also measure."""
    return "reliability" in config.option.markexpr


def find_group(nodeid: str) -> str | None:
    """Returns the group that a test belongs to, or None.

    The cases of Granian in a file that asks all servers run where Granian's other tests do.
    """
    file, _, case = nodeid.partition("::")
    is_of_granian = "/contract/" in file and re.search(r"\[(.*-)?granian", case)
    return "granian" if is_of_granian else GROUPS.get(file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the files that start servers first, so that the pure tests wait for none of them.

    The files of a group run in the order of their names: one may end what they share.
    """
    servers = {item.path for item in items if any(map(item.get_closest_marker, SERVER_MARKS))}
    items.sort(key=lambda item: (not find_group(item.nodeid), item.path not in servers, item.path))


@pytest.fixture(scope="session", autouse=True)
def one_thread_a_process() -> None:
    """Gives each test process one torch thread: two processes with two threads each wait."""
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Gives torch one thread: for many small layers, several would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def patient_and_quick_clients() -> Iterator[None]:
    """Lets clients wait for longer than httpx's five seconds, and make their context of TLS once.

    httpx makes one for each client, which reads all certificates and takes 40 ms of CPU time.
    """
    for name in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, MAX_S)
    once = functools.cache(transports.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "create_ssl_context", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_servers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Makes the tests' servers start and end with little CPU time.

    Java's compiler of hot code (C2) takes 40 % of the CPU of a start, and pays only under load.

    Servers are killed, because Java's end takes three idle seconds: Netty waits that long for
    further requests. Tests that run `offpath serve` in its own process end it as a user does.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not is_reliability(pytestconfig):
            patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        patch.setattr(any_server, "STOP_TIMEOUT_S", 0.5)
        yield


def build(
    store: Path,
    model: str,
    name: str,
    version: str = "1.0",
    *,
    weights: str | None = None,
    preset: str = "cpu",
    limits: Mapping[str, int] = {},
    code: Path | None = None,
    extra_files: Sequence[Path] = (),
    **handler: object,
) -> Path:
    """Builds an archive with `handler:` settings.

    Args:
        store: its folder.
        model: an embedded model, or FILE.py:CLASS.
        name: the model's name.
        version: the model's version.
        weights: None for an embedded model, or `random`.
        preset: the preset that the other settings change.
        limits: settings of TorchServe.
        code: a handler of its own.
        extra_files: more files in the archive.
        handler: settings of the handler.
    """
    from offpath.archive.build import ArchiveSpec, build_archive
    from offpath.archive.handler_file import load_custom_handler
    from offpath.archive.model_config import load_preset, make_model_config
    from offpath.archive.sources.model_source import load_model_source

    source = load_model_source(model, weights)
    settings = {**source.handler, "metrics_interval_s": 0.2, **handler}
    config = make_model_config(load_preset(preset), limits, settings)
    spec = ArchiveSpec(
        *(name, version, source, source.labels, "the labels", config),
        handler=code and load_custom_handler(str(code)),
        extra_files=tuple(extra_files),
    )
    return build_archive(spec, store, force=True).path


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds `classifier.mar` (EfficientNet-Lite0, real weights) and `near-free.mar`."""
    store = tmp_path_factory.mktemp("model-store")
    build(store, "efficientnet-lite0", "classifier", explanations=True)
    build(store, "near-free", "near-free", explanations=True)
    return store


@pytest.fixture(scope="session")
def server(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    """Runs a warm server of two models, with our config.properties, the model API and a log.

    Its store is a copy, because tests put further archives there.
    """
    from offpath.serving.starting import start_server
    from tests.support.front import log_variables

    folder = tmp_path_factory.mktemp("s")
    store = shutil.copytree(model_store, folder / "store")
    settings = ServerSettings(
        model_store=store,
        models=("near-free.mar", write_mar(store, "second").name),
        inference_port=0,
        management_port=0,
        metrics_port=0,
        grpc_port=0,
        overrides={"enable_model_api": "true"},
        env=log_variables(folder),
    )
    with start_server(settings) as running:
        with running.management() as management:
            running.warm_up([management.describe(name)[0] for name in running.plan.names])
        yield running


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    """Runs a server with default settings and one worker, which counts the bytes of a body."""
    from offpath.serving.starting import start_server

    mar = write_mar(tmp_path_factory.mktemp("echo") / "store")
    with start_server(make_settings(mar)) as running:
        yield running


@pytest.fixture
def answers() -> Iterator[Answers]:
    """Returns the answers of a server that does what they say."""
    with answering_server() as server:
        yield server


@pytest.fixture
def make_mar(tmp_path: Path) -> MakeMar:
    """Returns `make_mar(name, config)`, which writes an echo archive to `<tmp_path>/store`."""

    def make(*args: object, **kwargs: object) -> Path:
        return write_mar(tmp_path / "store", *args, **kwargs)

    return make


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a disk of some options of mount, such as `size=4m`; skips where that is forbidden."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Returns `mount_tmpfs(size)`, which mounts a small disk."""
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(small_disk(tmp_path / "disk", size))


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with run_seaweedfs() as server:
        yield server


@pytest.fixture
def aws_environ(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Credentials for SeaweedFS, in this process and in its child processes."""
    for name, value in seaweedfs.environ.items():
        monkeypatch.setenv(name, value)
    return dict(seaweedfs.environ)


@pytest.fixture
def bucket(seaweedfs: S3Server, aws_environ: dict[str, str]) -> Bucket:
    return Bucket(seaweedfs)
