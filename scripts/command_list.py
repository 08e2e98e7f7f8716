"""The commands of `offpath` with their options, for the documentation site and for tests."""

from __future__ import annotations

from collections.abc import Iterator

import click

from offpath.cli import main


def list_commands(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yields every command with its whole name; the members of a group follow in its place."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    if not isinstance(command, click.Group):
        yield path, command, context
        return
    for name in command.list_commands(context):
        member = command.get_command(context, name)
        if member is not None:
            yield from list_commands(member, f"{path} {name}", context)


def escape(text: str) -> str:
    """Escapes text for a cell of a table."""
    return text.replace("|", "\\|")


def format_commands() -> str:
    """Formats a heading, the first sentence and the options of each command."""
    blocks = []
    for path, command, context in list_commands(main, "offpath"):
        rows = [
            f"| `{escape(names)}` | {escape(text)} |"
            for parameter in command.get_params(context)
            if isinstance(parameter, click.Option) and "--help" not in parameter.opts
            for names, text in [parameter.get_help_record(context) or ("", "")]
        ]
        arguments = " ".join(
            parameter.make_metavar(context)
            for parameter in command.get_params(context)
            if isinstance(parameter, click.Argument)
        )
        blocks.append(f"## {f'{path} {arguments}'.strip()}")
        blocks.append(command.get_short_help_str(limit=400))
        if rows:
            blocks.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(blocks) + "\n"
