"""`offpath check`: findings about this host, a configuration, archives and a running server."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from offpath.archive.mar_file import is_model_folder
from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.shared_options import Archive
from offpath.commands.url_option import check_token, check_url
from offpath.errors import WrongOption
from offpath.serving.check.files import check_config
from offpath.serving.finding import Finding, State
from offpath.serving.printable import printable
from offpath.serving.server.management import UNIX
from offpath.serving.server.properties import read_properties

COLOURS = {State.OK: "green", State.LOST: "yellow", State.WRONG: "red"}
SUBJECT_WIDTH = 22
STATE_WIDTH = 6
INDENT = " " * (2 + STATE_WIDTH)


class FileToCheck(Archive):
    """A file by its path, or an archive by its name in the model store too."""

    def convert(self, value: str, *place: Any) -> Path:
        is_path = value.endswith(".properties") or Path(value).is_file()
        return Path(value) if is_path else super().convert(value, *place)


@click.command("check")
@takes_options
def command(
    files: tuple[Path, ...] = argument(
        "[CONFIG.properties] [ARCHIVE.mar]...", nargs=-1, type=FileToCheck(has_folders=True)
    ),
    url: str | None = option(
        "Any address of a server on this host, or the management API of another host's: "
        "http://HOST:8081 or unix:/path/management.sock "
        "[default: the server of this host, if no files are named]."
    ),
    token: str | None = option("Management key, if the server asks for one."),
    as_json: bool = option("Print the findings as JSON.", "--json"),
) -> None:
    """Check this host, files and a running server, and show what to change.

    Each finding is ok, lost (it works, but speed, metrics or safety is given away) or wrong (it
    does not do what was asked). The line after -> is the cure to copy. A TorchServe that you
    started yourself can be checked too. Exits with 1 if a finding is wrong.

    \b
    Examples:
      offpath check
      offpath check config.properties defects.mar
      offpath check --url http://127.0.0.1:8081 --json
    """
    findings = list(find_all(files, url, token))
    counts = {state: sum(one.state is state for one in findings) for state in State}
    if as_json:
        click.echo(json.dumps([asdict(one) for one in findings]))
    else:
        show(findings)
        click.echo(", ".join(f"{count} {state.value}" for state, count in counts.items()))
    if counts[State.WRONG]:
        sys.exit(1)


def find_all(files: Iterable[Path], url: str | None, token: str | None) -> Iterator[Finding]:
    """Yields findings about the host, about each file, and about the server.

    Raises:
        WrongOption: a file is neither a configuration nor an archive, the URL or the token is not
            valid, or several servers run and none is named.
    """
    from offpath.serving.check.files import check_archive
    from offpath.serving.check.host import check_host
    from offpath.serving.check.running import check_server
    from offpath.serving.servers_here import find_servers, refuse_several

    for file in files:
        if file.suffix not in (".mar", ".properties") and not is_model_folder(file):
            raise WrongOption(f"{file} is neither a .properties file nor an archive")
    if url is not None and not url.startswith(UNIX):
        check_url("--url", url)
    check_token(token)
    yield from check_host()
    for file in files:
        if file.suffix == ".properties":
            yield from check_config(read_properties(file), area=file.name)
        else:
            yield from check_archive(file)
    if url is None and not files:
        servers = find_servers()
        refuse_several(servers, "servers")
        # The last, because one server may just now replace another behind a door.
        url = servers[-1].address("management") if servers else None
    if url is not None:
        yield from check_server(url, token)
    elif not files:
        found = "not checked: no server is visible on this host; name one with --url"
        yield Finding("server", "management", State.OK, found)


def show(findings: Iterable[Finding]) -> None:
    """Prints each finding with its cure below it. A cure is never wrapped, so it can be copied."""
    width = shutil.get_terminal_size().columns
    area = cure = ""
    for one in findings:
        if one.area != area:
            area = one.area
            click.secho(printable(area), bold=True)
        state = one.state.value.ljust(STATE_WIDTH)
        text = printable(f"{one.subject.ljust(SUBJECT_WIDTH)} {one.found}")
        lines = textwrap.wrap(text, width - len(INDENT), break_on_hyphens=False)
        click.echo(f"  {click.style(state, COLOURS[one.state])}{lines[0]}")
        for line in lines[1:]:
            click.echo(f"{INDENT}{line}")
        if one.cure and one.cure != cure:
            click.echo(f"{INDENT}-> {printable(one.cure)}")
        cure = one.cure
