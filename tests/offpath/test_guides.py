"""README, guides and contributors' files print real commands, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from offpath.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
# A line of a block: `$ offpath ...` in a console, or indented.
LINE = re.compile(r"^(?:\$ |    )(offpath .*)$", re.MULTILINE)
# A comment; what is typed into a file; the two that stand for themselves.
CUT = re.compile(r"\s(#|>|\||&&|;).*$")


def list_commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in LINE.findall(text):
        yield CUT.sub("", line)


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Returns the innermost command and the words that follow it."""
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(context, words[0])
        assert inner is not None, f"no command {words[0]!r}"
        found, words = inner, words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_printed_commands_have_the_options_that_they_are_printed_with(page: Path) -> None:
    for line in list_commands(page):
        command, rest = find_command(shlex.split(line)[1:])
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known | {"-h", "--help"}, line


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


def test_every_threat_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("| threat | held by |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()]
    assert len(rows) > 10
    for threat, held_by in rows:
        named = re.findall(r"`(?:(tests/[\w/]+)/)?(\w+\.py)(?:::(\w+))?`", held_by)
        assert named, threat
        for folder, file, test in named:
            found = list((ROOT / (folder or "tests")).rglob(file))
            assert len(found) == 1, f"{file} of {threat.strip()!r}"
            source = found[0].read_text(encoding="utf-8")
            assert test.startswith("test_"), f"{test} of {threat.strip()!r} is no test"
            assert f"def {test}(" in source, f"{test} of {threat.strip()!r}"
