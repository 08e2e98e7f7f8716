"""Names in a result (servers, workloads, models) are text, on every page and in every terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.serving.printable import UNPRINTABLE
from tests.guarantees import guarantee
from tests.offpath.conftest import Run, run  # noqa: F401
from tests.support.pages import list_requests

RESULTS = Path(__file__).parents[2] / "profiling" / "results"
SAVED = Path(__file__).parent / "saved"
# A template, and for a chart a formula, are text too.
ATTACK = "</script></title><img src=x onerror=alert(1)>\"'[/x]\x1b[2J|{{ 7919 * 7919 }} $a$"
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


@guarantee(
    "Script or escapes in pages and names",
    "profiling/report/page.py",
    "autoescape=True,",
    "autoescape=False,",
)
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
    assert shown.out.startswith("    offpath ")
    for table in re.findall(r"(?:^\|.*\n)+", shown.out, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    page, plot = (Path(f"a.{end}").read_text(encoding="utf-8") for end in ("html", "svg"))
    assert list_requests(page) == list_requests(plot) == []
    assert MARK in page and "62710561" not in page
    assert "$a$" in plot or file.stem == "tune"  # whose bars are named by settings
    # Every picture says in words what it shows.
    drawings = page.split("<svg")[1:]
    assert drawings and all(' role="img" aria-label="' in one.split(">")[0] for one in drawings)
