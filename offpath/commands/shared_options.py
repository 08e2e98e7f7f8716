"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from offpath.errors import WrongOption

MODELS = ("near-free", "resnet50", "efficientnet-lite0")
# Where `offpath archive` puts archives, and where a name without a path is looked up.
MODEL_STORE = Path(".offpath/model-store")
SERVERS = click.Choice(["torchserve", "granian"])
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
CLIENTS_HELP = "Concurrent clients. Each sends its next request after the reply."


class Archive(click.ParamType):  # type: ignore[type-arg]
    """An archive by its path, or by its name in the model store with or without `.mar`.

    Attributes:
        has_folders: an archive may also be a folder with a manifest.
    """

    name = "archive"

    def __init__(self, has_folders: bool = False) -> None:
        self.has_folders = has_folders

    def get_metavar(self, *_: object, **__: object) -> str:
        return "PATH.mar|NAME"

    def convert(self, value: str, *place: Any) -> Path:
        from offpath.serving.server.model_store import find_archive  # takes long to import

        path = find_archive(MODEL_STORE, value)
        if path.is_dir() and not self.has_folders:
            self.fail(f"{value!r} is a folder; expected a .mar file", *place)
        return path


ARCHIVE = Archive()


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Reads the values of `--set` as YAML, so that numbers, lists and booleans work.

    Raises:
        WrongOption: a text has no `=`, no YAML after it, or dots in its key.
    """
    from offpath.archive.model_config import load_yaml  # yaml takes long to import

    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise WrongOption(f"--set {text!r}; expected KEY=VALUE")
        if "." in key:
            raise WrongOption(
                f"--set {text!r}: a setting inside a section is written as in --set "
                "'prediction_log={s3: {region: eu-west-1}}'"
            )
        settings[key] = load_yaml(value, f"--set {text!r}")
    return settings
