"""Every command that reads an archive refuses a hostile one in one line, and runs none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpath.serving.printable import UNPRINTABLE
from tests.guarantees import guarantee
from tests.offpath.conftest import Run
from tests.offpath.no_processes import forbid_processes
from tests.support.hostile_archives import CLASS_FILE, STOCK, pack, write_hostile

READERS = (
    "archive --from {} --output out",
    "batch {} images out",
    "bench compare --mar {} --servers offpath",
    "check {}",
    "export triton {} --output out",
    "profile stages --mar {}",
    "serve {} --once --front",
    "tune --mar {} --p95-ms 100",
)


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file that the class file makes where it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    forbid_processes(monkeypatch)
    return tmp_path / "ran"


# A case of each kind; tests/archive/test_mar_file.py reads all of HOSTILE with what they share.
KINDS = (
    *("no-zip", "folder", "no-manifest", "manifest-is-deep", "model-is-a-list", "name-is-a-path"),
    *("name-with-escapes", "version-with-escapes", "handler-with-escapes", "model-file-above"),
    *("weights-absolute", "config-missing", "member-above", "member-with-escapes"),
    *("member-is-a-link", "bomb", "damaged", "yaml-aliases", "yaml-python", "yaml-binary"),
)


@guarantee("Hostile archives and YAML")
@pytest.mark.parametrize("name", KINDS)
def test_every_reader_refuses_it_and_runs_none_of_it(run: Run, tmp_path: Path, name: str) -> None:
    write_hostile(tmp_path, name)
    for reader in READERS:
        done = run(*reader.format("hostile.mar").split())
        assert done.code in (1, 2), (reader, done.err)
        said = done.out + done.err
        assert len(done.err.splitlines()) <= 3, (reader, done.err)
        assert not UNPRINTABLE.search(said.replace("\n", "")), reader
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.mar"]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.split()[0])
def test_an_archive_is_a_path_or_a_name_of_the_store(run: Run, tmp_path: Path, reader: str) -> None:
    store = Path(".offpath", "model-store")
    store.mkdir(parents=True)
    write_hostile(store, "no-zip")
    for name in ("hostile", "hostile.mar", f"{store}/hostile.mar"):
        done = run(*reader.format(name).split())
        assert f"{store}/hostile.mar is not a TorchServe archive" in done.out + done.err, name
    done = run(*reader.format("none").split())
    assert done.code == 2
    assert f"there is no archive at none, and no 'none.mar' in {store} (it has host" in done.err


@guarantee("Hostile archives and YAML")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--output there", "pass --force to replace it", id="target"),
        pytest.param("--set no_such=1", "no_such", id="setting"),
        pytest.param("--batch-size 0", "batchSize is 0", id="batch"),
        pytest.param("", "cannot be loaded with weights_only", id="weights"),
    ],
)
def test_the_class_file_does_not_run_where_something_else_is_wrong(
    run: Run, tmp_path: Path, ran: Path, options: str, reason: str
) -> None:
    files = {"net.py": CLASS_FILE.encode(), "net.pt": b"no weights"}
    pack(tmp_path / "old.mar", {"model": STOCK}, files)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "m.mar").touch()
    done = run("archive", "--from", "old.mar", *options.split())
    assert done.code == 2
    assert reason in done.err
    assert not ran.exists()


def test_the_user_is_told_before_the_class_file_runs(run: Run, tmp_path: Path, ran: Path) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / "w.pt")
    code = f"{CLASS_FILE}\nraise SystemExit('I ran')\n".encode()
    files = {"net.py": code, "net.pt": (tmp_path / "w.pt").read_bytes()}
    pack(tmp_path / "old.mar", {"model": STOCK}, files)
    done = run("archive", "--from", "old.mar", "--output", "out")
    said, refused = done.err.splitlines()
    assert said == "running net.py of old.mar, which is Python code"
    assert "fails on import: SystemExit: I ran" in refused
    assert ran.exists()


@guarantee("Hostile archives and YAML")
def test_what_an_archive_says_reaches_the_terminal_escaped(run: Run, tmp_path: Path) -> None:
    model = {"modelName": "m", "handler": "h.py", "configFile": "c.yaml"}
    config = b'deviceType: "\\e[2Jowned"\nmaxWorkers: 1\nbatchSize: "\\e]0;x\\a"\n'
    pack(tmp_path / "a.mar", {"model": model}, {"c.yaml": config})
    done = run("check", "a.mar")
    assert "\\x1b[2Jowned" in done.out
    assert not UNPRINTABLE.search(done.out.replace("\n", ""))
