"""README, guides and contributors' files print real commands, links and tests."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from offpath.cli import main
from tests.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
GUARANTEES = "tests/GUARANTEES.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / GUARANTEES,
]
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


def list_guarantees(page: str, heading: str) -> list[str]:
    """Returns the bold words with which the rows of a section begin."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{page} has no section {heading!r}"
    return re.findall(r"^[-|] \*\*(.+?)\*\*", section[1], re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/security.md", "Threats and their tests"),
        ("docs/reliability.md", "What each failure costs"),
    ],
)
def test_every_guarantee_of_a_page_has_its_tests(page: str, heading: str) -> None:
    promised = list_guarantees(page, heading)
    assert len(promised) > 10
    assert list_guarantees(GUARANTEES, page) == promised


class Guarantee(NamedTuple):
    """A row in bold of tests/GUARANTEES.md, and the rows below it."""

    name: str
    mutations: list[str]
    tests: dict[str, str]


def read_guarantees() -> list[Guarantee]:
    """Returns all rows; `tests` has who runs a test, by its node id."""
    text = (ROOT / GUARANTEES).read_text(encoding="utf-8")
    found: list[Guarantee] = []
    for row in re.findall(r"^\| (?:\*\*|`tests/).*$", text, re.MULTILINE):
        first, run_by, mutations = (cell.strip() for cell in row.split("|")[1:4])
        if name := re.match(r"\*\*(.+?)\*\*", first):
            found.append(Guarantee(name[1], re.findall(r"`([\w-]+)`", mutations), {}))
        else:
            found[-1].tests[first.strip("`")] = run_by
    return found


def name_runner(marks: list[str]) -> str:
    """Returns who runs a test with these marks, in the words of the page's first table."""
    for kind in ("reliability", "slow"):
        if f"pytest.mark.{kind}" in marks:
            return kind
    has_slow_cases = any("marks=pytest.mark.slow" in mark for mark in marks)
    return "default, slow" if has_slow_cases else "default"


def list_tests(file: Path) -> dict[str, str]:
    """Returns the functions of a module that pytest collects as tests, and who runs each.

    A fixture, a function inside another one and a function of another file are none.
    """
    if not file.name.startswith("test_"):
        return {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    of_module = [
        mark
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in (node.value.elts if isinstance(node.value, ast.List) else [node.value])
    ]
    tests = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [ast.unparse(mark) for mark in (*of_module, *node.decorator_list)]
            if node.name.startswith("test") and "pytest.fixture" not in " ".join(named):
                tests[node.name] = name_runner(named)
    return tests


@pytest.mark.parametrize("guarantee", read_guarantees(), ids=lambda one: one.name)
def test_the_tests_of_a_guarantee_are_tests_that_pytest_collects(guarantee: Guarantee) -> None:
    assert guarantee.tests
    collected = {
        f"{file}::{test}": run_by
        for file in {node.partition("::")[0] for node in guarantee.tests}
        for test, run_by in list_tests(ROOT / file).items()
    }
    assert guarantee.tests.items() <= collected.items()


def test_every_mutation_stands_beside_a_test_that_it_runs() -> None:
    files: dict[str, set[str]] = {}
    for guarantee in read_guarantees():
        for mutation in guarantee.mutations:
            files.setdefault(mutation, set()).update(
                node.partition("::")[0] for node in guarantee.tests
            )
    assert files.keys() == {mutation.name for mutation in MUTATIONS}
    for mutation in MUTATIONS:
        assert files[mutation.name] & set(mutation.tests), mutation.name
