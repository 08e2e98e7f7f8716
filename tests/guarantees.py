"""Marks of the tests that hold what docs/security.md and docs/reliability.md promise.

python -m tests.guarantees          prints tests/GUARANTEES.md
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
# The promises of a page are the bold words that begin the rows of a section.
PROMISING = {
    "docs/security.md": "Threats and their tests",
    "docs/reliability.md": "What each failure costs",
}
HEAD = """# Guarantees and their tests

Made by `python -m tests.guarantees` from the decorators `@guarantee` of the tests. It lists
which tests hold what [docs/security.md](../docs/security.md) and
[docs/reliability.md](../docs/reliability.md) promise. Those in tests/reliability are run by
`scripts/test.sh --reliability`, and all others by `scripts/test.sh --all`.

Where a file is named, a change of it that stands beside the test breaks the promise, and the test
has to fail: `python -m tests.mutations TEST`. A test without one may still be needed, because a
change breaks a promise in one way of many. Fuzzers run longer with new examples each time:
`OFFPATH_FUZZ_EXAMPLES=5000 scripts/test.sh tests/fuzz/test_log.py`. Inputs that once failed are in
[tests/fuzz/corpus](fuzz/corpus/README.md).
"""

Test = TypeVar("Test", bound=Callable[..., object])


def guarantee(promise: str, file: str = "", old: str = "", new: str = "") -> Callable[[Test], Test]:
    """Marks a test that holds a promise, and the change of the product that must make the test red.

    All arguments are literals, because they are read without an import.

    Args:
        promise: the bold words of the promise's row in its page, or a promise of another page.
        file: path of the changed file, if there is a mutation.
        old: text that stands in the file once.
        new: its replacement, which breaks the promise.
    """
    return lambda test: test


@dataclass(frozen=True)
class Guarantee:
    """A decorator of a test, whose node id is `test`."""

    promise: str
    file: str
    old: str
    new: str
    test: str


def list_of_file(file: Path) -> Iterator[Guarantee]:
    """Yields the guarantees of a module's tests."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{file.relative_to(ROOT)}::{node.name}"
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "guarantee":
                    values = [ast.literal_eval(value) for value in call.args]
                    yield Guarantee(*values, *[""] * (4 - len(values)), name)


def list_guarantees() -> list[Guarantee]:
    """Returns the guarantees of all tests, in the order of files and lines."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [one for file in files for one in list_of_file(file)]


def list_promises(page: str) -> list[str]:
    """Returns the bold words with which the rows of a page's promising section begin."""
    text = (ROOT / page).read_text(encoding="utf-8")
    _, _, section = text.partition(f"\n## {PROMISING[page]}\n")
    rows = section.partition("\n## ")[0].splitlines()
    return [row[4:].partition("**")[0] for row in rows if row.startswith(("- **", "| **"))]


def format_page() -> str:
    """Formats tests/GUARANTEES.md: the promises of each page in its order, then all others."""
    found = list_guarantees()
    sections = {page: list_promises(page) for page in PROMISING}
    listed = {promise for promises in sections.values() for promise in promises}
    others = dict.fromkeys(one.promise for one in found if one.promise not in listed)
    lines = [HEAD]
    for page, promises in {**sections, "Other promises": list(others)}.items():
        lines += [f"## {page}\n", "| promise, its tests | changed file |", "|---|---|"]
        for promise in promises:
            lines.append(f"| **{promise}** | |")
            rows = [one for one in found if one.promise == promise]
            lines += [f"| `{one.test}` | {one.file} |" for one in rows]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_page(), end="")
