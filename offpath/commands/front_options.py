"""The front door's options of `offpath serve`; `offpath front` has most of them, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from offpath.handler.errors import WrongOption
from offpath.serving.front.door_settings import DoorSettings

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
DEFAULTS = DoorSettings()
# In the order of `--help`; the names are those of DoorSettings, but for `front` itself.
FRONT = click.option(
    "--front/--no-front",
    help="Put nginx before TorchServe: megabyte bodies never pass through Java "
    "(docs/front-door.md). The options that follow need it.",
)
DOOR_OPTIONS = [
    click.option("--tls-cert", type=FILE, help="PEM; HTTPS with HTTP/2."),
    click.option("--tls-key", type=FILE, help="PEM."),
    click.option(
        "--tokens",
        type=FILE,
        help="Bearer tokens, one a line; read again when it changes.",
    ),
    click.option(
        "--client-connections",
        type=click.IntRange(1),
        default=DEFAULTS.client_connections,
        show_default=True,
        help="Requests of one address at a time.",
    ),
    click.option(
        "--client-rate",
        type=click.IntRange(0),
        default=DEFAULTS.client_rate,
        help="Requests of one address a second [default: no limit].",
    ),
    click.option(
        "--client-timeout-s",
        type=click.IntRange(1),
        default=DEFAULTS.client_timeout_s,
        show_default=True,
        help="How long a client may send nothing within a request.",
    ),
    click.option(
        "--client-ids",
        is_flag=True,
        help="A client's x-request-id, where it is a UUID, begins the request's id.",
    ),
    click.option("--explanations", is_flag=True, help="Open /explanations too."),
    click.option(
        "--front-memory",
        "memory",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULTS.memory,
        show_default=True,
        help="The tmpfs that holds the bodies.",
    ),
    click.option(
        "--front-bodies",
        type=click.IntRange(1),
        default=DEFAULTS.front_bodies,
        show_default=True,
        help="How many bodies of max_request_size must fit there; one that finds no room later "
        "gets 503.",
    ),
]
SERVER_OPTIONS = [
    click.option(
        "--invocations",
        is_flag=True,
        help="Open /invocations, SageMaker's path to the only model (docs/sagemaker.md).",
    ),
    click.option(
        "--queue",
        type=click.IntRange(1),
        default=DEFAULTS.queue,
        show_default=True,
        help="Requests that may wait in TorchServe.",
    ),
    click.option(
        "--metrics-host",
        default=DEFAULTS.metrics_host,
        show_default=True,
        help="Where /metrics listens; it asks for no token.",
    ),
]


def front_options(command: Command) -> Command:
    """Adds the options of `offpath serve`; they come as `**front`."""
    return add_options(command, [FRONT, *DOOR_OPTIONS, *SERVER_OPTIONS])


def add_options(
    command: Command, options: Sequence[Callable[[Command], Command]]
) -> Command:
    """Adds options, in the order of `--help`."""
    for option in reversed(options):
        command = option(command)
    return command


def make_front(options: dict[str, Any], **common: Any) -> DoorSettings | None:
    """The door that the options ask for; None without `--front`.

    Args:
        options: those of this module.
        common: settings that come from options which a server without the door has too.

    Raises:
        WrongOption: an option that needs it is given without it, or two do not fit.
    """
    options = dict(options)
    if options.pop("front"):
        return DoorSettings(**common, **options)
    for name, value in options.items():
        if value != getattr(DEFAULTS, name):
            option = "front-memory" if name == "memory" else name.replace("_", "-")
            raise WrongOption(f"--{option} needs --front")
    return None
