"""Outputs of every measuring command: the options for files, printing, writing, stopping."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.declared_options import option
from offpath.commands.shared_options import FILE
from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.serving.process.interrupts import Terminated, stopping_on_signals

if TYPE_CHECKING:
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.core.run import Run
    from offpath.profiling.report.document import Document

PAGE_HELP = "Write one self-contained page."


@dataclass(frozen=True)
class Outputs:
    """Files that a run is written to beside the terminal; None for no file.

    Attributes:
        plot_path: image of the main charts.
        markdown: print Markdown tables instead of the terminal's.
    """

    json_path: Path | None = option("Save the raw values as they come.", "--json", type=FILE)
    html_path: Path | None = option(PAGE_HELP, "--html", type=FILE)
    plot_path: Path | None = None
    markdown: bool = False

    def __post_init__(self) -> None:
        # Refused before minutes of measuring. The folder of the raw values is created.
        check_output(self.json_path, with_folder=True)
        check_output(self.html_path, "jinja2")
        check_output(self.plot_path, "matplotlib")

    def save(self, run: Run) -> None:
        if self.json_path is not None:
            run.save(self.json_path)


def check_output(
    file: Path | None,
    package: str = "",
    extra: str = "bench",
    with_folder: bool = False,
) -> None:
    """Refuses an output that could not be written at the end.

    Args:
        package: the package that writes the file, and `extra`, which installs that.
        with_folder: the file's folder can be created.

    Raises:
        ExpectedError: the file cannot be written, or the package is not installed.
    """
    if file is None:
        return
    try:
        folder = file.absolute().parent
        while with_folder and not folder.exists():
            folder = folder.parent
        can_be_made = folder.is_dir() and not file.is_dir()
    except OSError:  # a name too long
        can_be_made = False
    if not can_be_made:
        raise WrongOption(
            f"{str(file)!r} cannot be written: expected a file's name in an existing folder"
        )
    if package and find_spec(package) is None:
        raise MissingPackage(package, extra)


def present(run: Run, document: Document, outputs: Outputs) -> None:
    from rich.console import Console

    from offpath.profiling.report.terminal import print_document

    if outputs.markdown:
        from offpath.profiling.report.document import format_markdown

        click.echo(format_markdown(document))
    else:
        print_document(document, Console())
    if outputs.html_path is not None:
        from offpath.profiling.report.page import write_page

        write_page(document, outputs.html_path)
    if outputs.plot_path is not None:
        from offpath.profiling.report.charts import draw_charts

        draw_charts(document.headline, outputs.plot_path)
    written = {
        "raw values": outputs.json_path,
        "page": outputs.html_path,
        "plot": outputs.plot_path,
    }
    for what, path in written.items():
        if path is not None:
            click.echo(f"{what}: {path}", err=outputs.markdown)


def command_line() -> str:
    """Returns the command line as typed, with `offpath` for the program's path."""
    return shlex.join(["offpath", *sys.argv[1:]])


@contextlib.contextmanager
def measuring(outputs: Outputs, what: str) -> Iterator[LiveProgress]:
    """Shows progress. At Ctrl-C and SIGTERM, stops the servers and says where the results are."""
    from offpath.commands.progress import LiveProgress  # rich takes long to import

    path = outputs.json_path
    try:
        with stopping_on_signals(), LiveProgress() as progress:
            yield progress
    except (KeyboardInterrupt, Terminated) as stop:
        if path is not None and path.exists():
            click.echo(f"stopped; finished {what} are in {path}", err=True)
        else:
            click.echo(f"stopped; nothing was kept (--json keeps {what})", err=True)
        raise KeyboardInterrupt from stop


def split_names(text: str) -> tuple[str, ...]:
    """Splits `a, b` into (a, b)."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """An option like `4,8`, whose value is (4, 8)."""

    name = "N,..."

    def convert(self, value: str, *place: Any) -> tuple[int, ...]:
        names = split_names(value)
        if not names or not all(name.isdigit() and int(name) for name in names):
            self.fail(f"{value!r}: expected whole numbers above 0, for instance 4,8", *place)
        return tuple(map(int, names))


def refuse_existing(option: str, file: Path | None) -> None:
    """Raises WrongOption if the file that an option names is there already."""
    if file is not None and file.exists():
        raise WrongOption(f"{option} {str(file)!r} exists: name another file")


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 where a variant failed, after the report was shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure (see the message above): {names}")
