"""The `offpath` command: finds the subcommand, runs it, turns errors into exit codes.

Exit codes: 0 success; 1 the operation failed (a server does not answer, an image is refused, a
condition holds); 2 wrong usage (an option, or a file that it names) or a missing package; 3 bug;
130 Ctrl-C. Every code but 3 comes with one line that says what is wrong.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback

import click

from offpath.commands.explained_errors import (
    explain_full,
    explain_missing,
    explain_path,
)
from offpath.commands.variables import find_unread_variables
from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.serving.printable import printable_lines

FAILED, WRONG_USAGE = 1, 2

# Subcommands; the module of that name in offpath.commands defines each as `command`. Modules are
# imported on first use, so that `offpath predict` never imports torch.
COMMANDS = (
    *("archive", "batch", "bench", "canary", "check", "cost", "demo", "export", "logs", "predict"),
    *("profile", "reload", "serve", "tune"),
)


class LazyGroup(click.Group):
    """A click group whose subcommands are imported on first use."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"offpath.commands.{cmd_name}")
        command: click.Command = module.command
        return command


@click.group(
    cls=LazyGroup,
    # For the list of commands, and the nearest of a misspelt one.
    commands=[click.Command(name) for name in COMMANDS],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="torchserve-offpath", prog_name="offpath")
@click.pass_context
def main(context: click.Context) -> None:
    """Build, serve, measure and operate image classifiers on TorchServe."""
    if context.invoked_subcommand != "serve":  # which refuses them
        for problem in find_unread_variables(os.environ):
            click.echo(f"offpath: warning: {printable_lines(problem)}", err=True)


def run(argv: list[str] | None = None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A file's name or a server's text may hold what the terminal's encoding cannot express.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main.main(args=argv, prog_name="offpath", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        # If Ctrl-C comes inside exec() of a text, as a dataclass's definition is, CPython remembers
        # it and ends the process by SIGINT instead of with 130. The next exec() forgets it.
        exec("")
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        sys.exit(say_usage(error))
    except ExpectedError as error:
        sys.exit(say(error))
    except Exception as error:
        arguments = sys.argv[1:] if argv is None else argv
        if isinstance(error, ModuleNotFoundError):
            missing = explain_missing(error, arguments)
            if missing is not None:
                sys.exit(say(missing))
        if isinstance(error, OSError):
            unfit = explain_path(error, arguments) or explain_full(error)
            if unfit is not None:
                sys.exit(say(unfit))
        traceback.print_exc()
        click.echo("offpath: this is a bug; the traceback above says where", err=True)
        sys.exit(3)
    sys.exit(code if isinstance(code, int) else 0)


def say_usage(error: click.ClickException) -> int:
    """Prints click's message in one line and names the command whose --help explains it."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        # click sorts them by the alphabet.
        near = difflib.get_close_matches(error.option_name, error.possibilities, 1, 0)
        error = click.NoSuchOption(error.option_name, None, near, error.ctx)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "offpath"
    text = " ".join(error.format_message().split()).rstrip(".")
    click.echo(f"offpath: {text} (see `{path} --help`)", err=True)
    return WRONG_USAGE


def say(error: ExpectedError) -> int:
    """Prints an expected error and returns its exit code.

    A usage error is one line; an operation that failed may add the last lines of a log.
    """
    is_usage = isinstance(error, (WrongOption, MissingPackage))
    text = " ".join(str(error).split()) if is_usage else str(error)
    click.echo(f"offpath: {printable_lines(text)}", err=True)
    return WRONG_USAGE if is_usage else FAILED
