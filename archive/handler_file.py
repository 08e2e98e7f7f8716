"""Checks the user's subclass of our handler: `offpath archive --handler my_handler.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offpath.archive import Say, say_nothing
from offpath.archive.sources.definition import DefinitionFolder
from offpath.errors import WrongOption
from offpath.handler.config_section import MUCH_LIKE, suggest

# Members of TorchServe's handlers that we have another way for.
NOT_CALLED = """
    describe_handle explain_handle get_insights get_max_result_classes image_processing
    set_max_result_classes
""".split()


@dataclass(frozen=True)
class HandlerFile:
    """A file with a subclass of OffpathClassifier, and the class's name."""

    file: Path
    class_name: str

    @property
    def mark(self) -> str:
        """The text in the archive that tells a worker which class to load."""
        return f"{self.file.stem}:{self.class_name}"


def load_custom_handler(named: str, say: Say = say_nothing) -> HandlerFile:
    """Imports the user's handler file as the worker will, and finds its class.

    Args:
        named: `my_handler.py`, or `my_handler.py:Class` if the file defines several.
        say: told of methods that are never called.

    Raises:
        WrongOption: there is no such file, its name cannot be imported, the import fails, or the
            class is missing or ambiguous.
    """
    path_text, _, class_name = named.partition(":")
    file = Path(path_text)
    if not file.is_file() or file.suffix != ".py":
        raise WrongOption(f"--handler {named!r}: there is no Python file {path_text!r}")
    found = _find_subclasses(file)
    if class_name and class_name not in found:
        raise WrongOption(
            f"--handler {named!r}: {file.name} defines "
            f"{', '.join(found) or 'no subclass of OffpathClassifier'}"
        )
    if not class_name and len(found) != 1:
        raise WrongOption(
            f"--handler {file.name}: expected one subclass of OffpathClassifier, found "
            f"{', '.join(found) or 'none'}"
            + (f"; choose one: --handler {file.name}:{[*found][0]}" if found else "")
        )
    class_name = class_name or [*found][0]
    for doubt in _find_uncalled(found[class_name]):
        say(f"warning: {doubt}")
    return HandlerFile(file, class_name)


def _find_uncalled(handler: type) -> Iterator[str]:
    from offpath.handler.classifier import OffpathClassifier

    called = [*(name for name in vars(OffpathClassifier) if not name.startswith("_")), "handle"]
    classes = (one for one in handler.__mro__ if one not in OffpathClassifier.__mro__)
    names = {name for one in classes for name in vars(one)}
    if names.isdisjoint(called):
        yield f"{handler.__name__} overrides no method that offpath calls: {', '.join(called)}"
    for name in sorted(names.difference(called)):
        near = suggest(name, called, MUCH_LIKE)
        if near or name in NOT_CALLED:
            yield f"offpath does not use {handler.__name__}.{name}{near}"


def _find_subclasses(file: Path) -> dict[str, type]:
    from offpath.handler.classifier import OffpathClassifier

    # The handler may import its neighbours, which --extra-file adds to the archive.
    module = DefinitionFolder(file).import_file(file)
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, OffpathClassifier)
        and value.__module__ == file.stem
    }
