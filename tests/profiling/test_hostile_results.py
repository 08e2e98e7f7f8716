"""Names in a result (servers, workloads, models) are text, on every page and in every terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.serving.printable import UNPRINTABLE
from tests.offpath.conftest import Run, run  # noqa: F401
from tests.support.guarantees import guarantee
from tests.support.pages import list_requests

RESULTS = Path(__file__).parents[2] / "profiling" / "results"
SAVED = Path(__file__).parent / "saved"
ATTACK = "</script></title><img src=x onerror=alert(1)>\"'[/x]\x1b[2J"
MARK = "onerror=alert(1)"
FILES = [
    RESULTS / "direct-55k.json",
    RESULTS / "clients.json",
    SAVED / "tune.json",
    SAVED / "profile-stages.json",
]


def list_names(content: dict[str, Any]) -> Iterator[str]:
    """Yields the names that a user or an archive chose."""
    for section in ("variants", "workloads"):
        yield from (n for n in content.get(section, {}) if not n.startswith("limit:"))
    yield from (v for v in content["host"].values() if isinstance(v, str))
    yield content["command"]


def poison(path: Path) -> str:
    """Returns a result whose names carry the attack."""
    text = path.read_text(encoding="utf-8")
    for name in sorted(set(list_names(json.loads(text)))):
        if name:
            text = text.replace(json.dumps(name), json.dumps(name + ATTACK))
    return text


@guarantee("Script or escapes in pages and names")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_of_a_result_are_text_everywhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path  # noqa: F811
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(poison(file), encoding="utf-8")
    outputs = ["--html", "a.html", "--plot", "a.svg"]
    done = run("bench", "show", "a.json", *outputs)
    assert done.code == 0, done.err
    shown = run("bench", "show", "a.json", "--markdown")
    for said in (done.out, done.err, shown.out):
        assert not UNPRINTABLE.search(said.replace("\n", ""))
    page = Path("a.html").read_text(encoding="utf-8")
    assert MARK in page and list_requests(page) == []
    assert list_requests(Path("a.svg").read_text(encoding="utf-8")) == []
