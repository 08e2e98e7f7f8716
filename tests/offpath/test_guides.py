"""README, guides and contributors' files print real commands, links and tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from offpath.cli import main
from scripts.command_list import list_commands
from tests.guarantees import PROMISING, Guarantee, format_page, list_guarantees, list_promises

ROOT = Path(__file__).parents[2]
GUARANTEES = "tests/GUARANTEES.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / GUARANTEES,
]
# Command -> its options.
OPTIONS = {
    path: {name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)}
    for path, command, context in list_commands(main, "offpath")
}
# A line of a block: `$ offpath ...` in a console, or indented.
LINE = re.compile(r"^(?:\$ |    )(offpath .*)$", re.MULTILINE)
# A comment; what is typed into a file; the two that stand for themselves.
CUT = re.compile(r"\s(#|>|\||&&|;).*$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_printed_commands_have_the_options_that_they_are_printed_with(page: Path) -> None:
    for line in LINE.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        words = shlex.split(CUT.sub("", line))
        known = OPTIONS.get(" ".join(words[:3])) or OPTIONS[" ".join(words[:2])]
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if heading:
            found = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in found}
            assert heading in slugs, target


def test_the_page_of_guarantees_is_that_of_the_tests() -> None:
    page = (ROOT / GUARANTEES).read_text(encoding="utf-8")
    assert page == format_page(), "write it: python -m tests.guarantees > tests/GUARANTEES.md"


@pytest.mark.parametrize("page", PROMISING)
def test_every_promise_of_a_page_has_a_test(page: str) -> None:
    promised = list_promises(page)
    assert len(promised) > 10
    assert {*promised} <= {one.promise for one in list_guarantees()}


@pytest.mark.parametrize("one", list_guarantees(), ids=lambda one: f"{one.promise}-{one.test}")
def test_a_guarantee_marks_a_test_and_changes_one_place(one: Guarantee) -> None:
    file, _, name = one.test.partition("::")
    assert name.startswith("test_") and Path(file).name.startswith("test_")
    if one.file:
        assert (ROOT / one.file).read_text("utf-8").count(one.old) == 1
        assert one.old != one.new
