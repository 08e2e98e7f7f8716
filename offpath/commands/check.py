"""`offpath check`: what this host, a configuration, archives and a running server really have."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from offpath.commands.shared_options import json_option
from offpath.commands.url_option import check_token, check_url
from offpath.handler.errors import WrongOption
from offpath.serving.check.config_file import check_config
from offpath.serving.finding import Finding, State
from offpath.serving.torchserve.management import UNIX
from offpath.serving.torchserve.properties import read_properties

COLOURS = {State.OK: "green", State.LOST: "yellow", State.WRONG: "red"}
SUBJECT_WIDTH = 22
STATE_WIDTH = 6
INDENT = " " * (2 + STATE_WIDTH)


@click.command("check")
@click.argument(
    "files",
    nargs=-1,
    metavar="[CONFIG.properties] [ARCHIVE.mar]...",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--url",
    help="Management API of a running server: http://HOST:8081, or unix:/path/management.sock "
    "[default: the one TorchServe on this host, where no files are named].",
)
@click.option("--token", help="Management key, where the server asks for one.")
@json_option("Print the findings as JSON.")
def command(
    files: tuple[Path, ...], url: str | None, token: str | None, as_json: bool
) -> None:
    """Say what this host and a running server really have, and what to change.

    Each line is ok, lost (it works, and something is given away) or wrong (it does not do what was
    asked), with the line to copy. Works on a TorchServe that you started yourself. Exits with 1
    when something is wrong.

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
        click.echo(
            ", ".join(f"{count} {state.value}" for state, count in counts.items())
        )
    if counts[State.WRONG]:
        sys.exit(1)


def find_all(
    files: Iterable[Path], url: str | None, token: str | None
) -> Iterator[Finding]:
    """The host's findings, those of each file, those of the server.

    Raises:
        WrongOption: a file that is neither a configuration nor an archive, a URL or a
            token that is none.
    """
    from offpath.serving.check.archive_file import check_archive
    from offpath.serving.check.host import check_host
    from offpath.serving.check.running import check_server

    for file in files:
        if file.suffix not in (".mar", ".properties"):
            raise WrongOption(f"{file} is neither a .properties file nor a .mar")
    if url is not None and not url.startswith(UNIX):
        check_url("--url", url)
    check_token(token)
    yield from check_host()
    for file in files:
        if file.suffix == ".mar":
            yield from check_archive(file)
        else:
            yield from check_config(read_properties(file), area=file.name)
    url = url or (None if files else _find_url())
    if url is not None:
        yield from check_server(url, token)
    elif not files:
        found = "no TorchServe runs here, or not to be seen; not checked (--url)"
        yield Finding("server", "management", State.OK, found)


def show(findings: Iterable[Finding]) -> None:
    """A line each, and the cure beneath it; a cure is never broken: it is to be copied."""
    width = shutil.get_terminal_size().columns
    area = cure = ""
    for one in findings:
        if one.area != area:
            area = one.area
            click.secho(area, bold=True)
        state = one.state.value.ljust(STATE_WIDTH)
        text = f"{one.subject.ljust(SUBJECT_WIDTH)} {one.found}"
        lines = textwrap.wrap(text, width - len(INDENT), break_on_hyphens=False)
        click.echo(f"  {click.style(state, COLOURS[one.state])}{lines[0]}")
        for line in lines[1:]:
            click.echo(f"{INDENT}{line}")
        if one.cure and one.cure != cure:
            click.echo(f"{INDENT}-> {one.cure}")
        cure = one.cure


def _find_url() -> str | None:
    """The management API of the one TorchServe on this host; None without one.

    Raises:
        WrongOption: there are several.
    """
    from offpath.serving.check.running import find_servers

    urls = [server.address("management") for server in find_servers()]
    if len(urls) > 1:
        raise WrongOption(
            f"several TorchServes run here, name one: --url {' or --url '.join(urls)}"
        )
    return urls[0] if urls else None
