"""Copies README.md and docs/ to build/docs, as the site's generator needs them.

usage: python scripts/stage_docs.py

A link that leaves docs/ (to a result, a chart or a source file) leads to a copy of that file,
because a site has nothing above its root. Three pages are made here: the list of lab notes, the
Python API and the commands with their options. Exits with 1 if the navigation in zensical.toml
names a page that does not exist, or leaves one out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from command_list import format_commands

ROOT = Path(__file__).resolve().parents[1]
DOCS, STAGE = ROOT / "docs", ROOT / "build" / "docs"
# Pages from outside docs/, and folders that pages link to -> their place on the site.
PLACES = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security-policy.md",
    DOCS / "research": "research/index.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
HEADING = re.compile(r"^#+ .*\[.*$", re.MULTILINE)
NAMED = re.compile(r'"([\w/.-]+\.md)"')
# Browsers show these files; a copy of any other file is named .txt, so that it is shown too.
SHOWN = {".json", ".svg", ".png", ".jpg", ".md", ".css"}
NOTES = """# Research

Dated notes from the laboratory, with commands. The guides repeat the findings.
Raw results, pictures and older notes are in git: `git show b8a6a08b:docs/research`.

| date | note |
|---|---|
"""
API = """# Python API

The client needs neither torch nor TorchServe:

```python
from offpath.client import Client

with Client("http://127.0.0.1:8080") as client:
    print(client.predict("photo.jpg").labels)
```

A handler of your own is a subclass of `OffpathClassifier`: [your handler](your-handler.md).

"""
# Name -> option of mkdocstrings.
CLASSES: dict[str, str] = {
    "offpath.serving.client.Client": "",
    "offpath.serving.client.AsyncClient": "",
    "offpath.serving.client.Prediction": "",
    "offpath.serving.client.ServerError": "",
    "offpath.serving.client.ServerUnreachable": "",
    "offpath.serving.client.ModelNotNamed": "",
    "offpath.handler.classifier.OffpathClassifier": "members: [postprocess_item]",
    "offpath.handler.custom_handler.Result": "",
    "offpath.handler.custom_handler.ClassProbability": "",
    "offpath.handler.errors.ItemError": "",
}


def find_place(file: Path) -> str:
    """Returns where a file of the repository is on the site."""
    if file in PLACES:
        return PLACES[file]
    if file.is_relative_to(DOCS):
        return str(file.relative_to(DOCS))
    suffix = "" if file.suffix in SHOWN else ".txt"
    return f"files/{file.relative_to(ROOT)}{suffix}"


def copy_page(page: Path) -> None:
    """Copies a page and the files that it links to, and adapts its links."""
    place = STAGE / find_place(page)
    if place.exists():
        return

    def relink(match: re.Match[str]) -> str:
        file = (page.parent / match[1]).resolve()
        if file.suffix == ".md":
            copy_page(file)
        elif file.is_file():
            copy_file(file)
        return os.path.relpath(STAGE / find_place(file), place.parent)

    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    text = LINK.sub(relink, page.read_text("utf-8"))
    place.write_text(escape_headings(text), "utf-8")


def escape_headings(text: str) -> str:
    """Keeps a usage line in a heading from being read as a link."""
    return HEADING.sub(lambda heading: heading[0].replace("[", r"\["), text)


def copy_file(file: Path) -> None:
    place = STAGE / find_place(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def write_notes(notes: list[Path]) -> None:
    """Writes the list of lab notes, the newest first."""
    rows = ""
    for note in sorted(notes, reverse=True):
        title = note.read_text("utf-8").partition("\n")[0].lstrip("# ")
        rows += f"| {note.name[:10]} | [{title}]({note.name}) |\n"
    (STAGE / PLACES[DOCS / "research"]).write_text(NOTES + rows, "utf-8")


def write_api() -> None:
    """Writes the page that mkdocstrings fills from docstrings."""
    blocks = (
        f"::: {name}" + (f"\n    options:\n      {option}" if option else "")
        for name, option in CLASSES.items()
    )
    (STAGE / "python.md").write_text(API + "\n\n".join(blocks) + "\n", "utf-8")


def find_strays(pages: set[str], navigation: str) -> list[str]:
    """Returns what is wrong with the navigation, given the pages that it must name."""
    named = set(NAMED.findall(navigation))
    missing = [f"no page {page}, which zensical.toml names" for page in named - pages]
    return missing + [f"{page} is not in zensical.toml's nav" for page in pages - named]


def main() -> int:
    """Stages the pages; returns the exit code."""
    shutil.rmtree(STAGE, ignore_errors=True)
    notes = list((DOCS / "research").glob("*.md"))
    for page in [*PLACES, *DOCS.glob("*.md"), *notes]:
        if page.is_file():
            copy_page(page)
    copy_file(DOCS / "site.css")
    write_notes(notes)
    write_api()
    commands = f"# Commands\n\nAlso: `offpath COMMAND --help`.\n\n{format_commands()}"
    (STAGE / "commands.md").write_text(escape_headings(commands), "utf-8")
    # Lab notes are reached from their list, and files from the pages that link to them.
    pages = {path.name for path in STAGE.glob("*.md")} | {"research/index.md"}
    strays = find_strays(pages, (ROOT / "zensical.toml").read_text("utf-8"))
    print(*strays, sep="\n", end="\n" if strays else "", file=sys.stderr)
    return 1 if strays else 0


if __name__ == "__main__":
    sys.exit(main())
