"""The `offpath` command: finds the subcommand, runs it, turns errors into exit codes.

Exit codes: 0 success, 1 expected error, 2 wrong usage or a missing package, 3 bug, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import sys
import traceback

import click

from offpath.commands.extras import explain_missing
from offpath.handler.errors import ExpectedError

# Subcommand -> module that holds it as `command`; imported when called, so that `offpath predict`
# never pays for torch.
COMMANDS = {
    "archive": "offpath.commands.archive",
    "bench": "offpath.commands.bench",
    "check": "offpath.commands.check",
    "cost": "offpath.commands.cost",
    "export": "offpath.commands.export",
    "front": "offpath.commands.front",
    "logs": "offpath.commands.logs",
    "predict": "offpath.commands.predict",
    "profile": "offpath.commands.profile",
    "reload": "offpath.commands.reload",
    "serve": "offpath.commands.serve",
    "tune": "offpath.commands.tune",
}


class LazyGroup(click.Group):
    """A click group whose subcommands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="torchserve-offpath", prog_name="offpath")
def main() -> None:
    """An image classifier for TorchServe with nothing but inference on the request's path."""


def run(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    try:
        code = main.main(args=argv, prog_name="offpath", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code if isinstance(error, click.UsageError) else 1)
    except ExpectedError as error:
        sys.exit(say(error))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            missing = explain_missing(error)
            if missing is not None:
                sys.exit(say(missing))
        traceback.print_exc()
        click.echo("offpath: this is a bug; the traceback above says where", err=True)
        sys.exit(3)
    sys.exit(code if isinstance(code, int) else 0)


def say(error: ExpectedError) -> int:
    """One line, and the exit code."""
    click.echo(f"offpath: {error}", err=True)
    return error.exit_code
