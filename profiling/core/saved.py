"""Results as JSON: written as a whole, read back into their dataclasses, told apart by format."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from offpath.handler.errors import ExpectedError


class IsDataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Result = TypeVar("Result", bound=IsDataclass)


@dataclass(frozen=True)
class Saved(Generic[Result]):
    """How one kind of result is kept.

    Attributes:
        format: name and version, the file's first key.
        kind: the result's dataclass; its fields and theirs are checked when a file is read.
        command: that writes it, for messages: `bench light`.
    """

    format: str
    kind: type[Result]
    command: str

    def save(self, result: Result, path: Path) -> None:
        """Writes the JSON; replaces the file as a whole, so a save cut short leaves the old one."""
        content = {"format": self.format, **asdict(result)}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(format_json(content), encoding="utf-8")
        os.replace(partial, path)

    def load(self, path: Path) -> Result:
        """Reads a saved result.

        Raises:
            ExpectedError: no such file, or not what `command` writes; says what is wrong with it.
        """
        try:
            content = read_content(path)
            if content["format"] != self.format:
                raise ValueError(f"its format is not {self.format}")
            # JSON has no other keys than text; dataclasses may have whole numbers.
            return msgspec.convert(content, self.kind, str_keys=True)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            raise ExpectedError(
                f"cannot read {str(path)!r} as a result of `offpath {self.command}`: {error}"
            ) from error


def read_content(path: Path) -> dict[str, Any]:
    """A result's JSON; raises OSError, or ValueError where it is none."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("format"), str):
        raise ValueError("it does not say its format")
    return content


def read_format(path: Path) -> str:
    """The name of a saved result's format, without its version: `offpath-light`.

    Raises:
        ExpectedError: no such file, or no result.
    """
    try:
        name: str = read_content(path)["format"].partition("/")[0]
        return name
    except (OSError, ValueError) as error:
        raise ExpectedError(
            f"cannot read {str(path)!r} as a result of `offpath`: {error}"
        ) from error


def format_json(content: Mapping[str, Any]) -> str:
    """JSON with one line per measurement: readable in a diff, small with its raw values."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value:
            rows = ",\n".join(
                "  " + json.dumps(row, separators=(",", ":")) for row in value
            )
            text = f"[\n{rows}\n ]"
        else:
            text = json.dumps(value, indent=1).replace("\n", "\n ")
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"
