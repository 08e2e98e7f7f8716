"""Finds unclear English that a rule can find; the rest is reading.

usage: python scripts/check_english.py [FILE ...]     (without files: all that git tracks)

A docstring begins with a verb or a noun phrase, never with a question word or a preposition, and
words that readers stumbled over have a better one. A class's name stands for one thing in the whole
product. Exits with 1 when something was found.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# A first word that makes a reader search for the subject of the sentence.
RIDDLE = re.compile(
    r"(Of|What|Whatever|Whether|Which|How|As|Where|Why|Who|Whose|Its|See|One of|So)\b"
)
# (pattern, better): in documents, comments, docstrings and messages alike.
WORDS = [
    (
        r"\b(requests?|replies|answers?|images?|photographs?|batch(es)?|records?|"
        r"responses?|times|rows?|[kMG]B|MiB|GiB|bytes|req|\$\d+) an? "
        r"(second|minute|hour|day|month)\b",
        "per",
    ),
    (r"\bms an? (request|reply|image|photograph|batch)\b", "ms per"),
    (
        r"\bone \w+ an? (core|round|worker|server|process|row|batch|request|model)\b",
        "per",
    ),
    (r"\ba number a \w+", "one number per"),
    (r"\bwhence\b", "where ... comes from"),
    (r"\bof one's own\b", "your own"),
    (r"\bby hand\b", "manually"),
    (r"\banew\b", "again"),
    (r"\b[Ff]or who\b", "for anyone who"),
    (r"(?<!-)\ba (?!uni|us|ui|utf|uu|ur[il]|one|once|eu|and|are|each)[aeiou]\w{2,}", "an"),
]
# Sentences go on in the next line, also of a comment.
SPACE = r"(?: |\n[ \t]*(?:# )?)"
TEXT_SUFFIXES = {".py", ".md", ".sh", ".yaml", ".yml", ".cfg", ".properties", ".conf"}
# Results quote what was printed then, and this file quotes the words themselves.
NOT_READ = ("profiling/results/", "tests/fuzz/corpus/", "scripts/check_english.py")

PRODUCT = ("handler/", "archive/", "serving/", "deploy/", "profiling/", "offpath/")
# Names that a server looks for.
PRESCRIBED = frozenset({"Classifier", "TritonPythonModel"})
LIMIT = re.compile(r"_?(MOST|LEAST)_\w+")


def find_riddles(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and docstring of each definition whose docstring begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if RIDDLE.match(docstring):
                yield getattr(node, "lineno", 1), docstring.splitlines()[0]


def find_names(source: str, taken: dict[str, str], file: str) -> Iterator[tuple[int, str]]:
    """Yields line and advice for classes whose name is taken, and limits that are not MAX or MIN.

    Args:
        taken: class -> the file that has it; gets those of this file.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and LIMIT.fullmatch(node.id):
            yield node.lineno, f"{node.id}: name a limit MAX or MIN"
        if isinstance(node, ast.ClassDef) and node.name not in PRESCRIBED:
            if taken.setdefault(node.name, file) != file:
                yield node.lineno, f"{taken[node.name]} has a class {node.name} too: rename one"


def find_words(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and advice for each word of WORDS."""
    for pattern, better in WORDS:
        for found in re.finditer(pattern.replace(" ", SPACE), text, re.IGNORECASE):
            number = 1 + text.count("\n", 0, found.start())
            yield number, f"{' '.join(found.group(0).split())!r}: write {better!r}"


def main(names: list[str]) -> int:
    """Checks the files and returns the exit code."""
    if not names:
        listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
        names = listed.stdout.splitlines()
    count, taken = 0, dict[str, str]()
    for name in names:
        path = Path(name)
        if path.suffix not in TEXT_SUFFIXES or path.is_symlink() or name.startswith(NOT_READ):
            continue
        text = path.read_text(encoding="utf-8")
        findings = [*find_words(text)]
        if path.suffix == ".py":
            findings += [
                (line, f"docstring begins like a riddle: {first}")
                for line, first in find_riddles(text)
            ]
        if path.suffix == ".py" and name.startswith(PRODUCT):
            findings += find_names(text, taken, name)
        for line, finding in sorted(findings):
            print(f"{name}:{line}: {finding}")
        count += len(findings)
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
