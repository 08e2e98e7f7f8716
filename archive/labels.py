"""Reads label files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from offpath.archive import Say, say_nothing
from offpath.errors import WrongOption

# Lines with the class's number: `0,cat`, `0: cat`, `0 cat` and `cat,0`.
NUMBERED = (
    r"\s*(?P<number>\d{1,6})(?P<mark>\s*[,;:\t]\s*|\s+)(?P<label>.*\S)\s*",
    r"\s*(?P<label>.*\S)(?P<mark>\s*[,;:\t]\s*)(?P<number>\d{1,6})\s*",
)


def read_labels(path: Path, say: Say = say_nothing) -> list[str]:
    """Reads a file with one label per line, TorchServe's index_to_name.json, or a config.json.

    Lines may have the class's number beside the label. JSON may map labels to numbers too, as
    ImageFolder's `class_to_idx`.

    A value of the JSON is a label, or a list that ends with one: {"0": "cat"},
    {"0": ["n02123045", "cat"]}. Older examples of TorchServe have a list under
    `object_type_names`, and the config.json of a Hugging Face model has labels under `id2label`.

    Args:
        say: told which labels several classes share; these get the index.

    Raises:
        WrongOption: the file is missing or unreadable, or an index is missing.
    """
    if not path.is_file():
        raise WrongOption(f"--labels {str(path)!r}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        raise WrongOption(f"{path.name} is not UTF-8 text") from error
    is_mapping = path.suffix == ".json" or text.lstrip().startswith("{")
    labels = _from_json(path, text) if is_mapping else _from_lines(path, text)
    labels = [label.strip() for label in labels]
    if "" in labels:
        raise WrongOption(
            f"{path.name} has no label for class {labels.index('')}: its line or text is empty"
        )
    told_apart = tell_apart(labels)
    shared = {before: after for before, after in zip(labels, told_apart) if after != before}
    if shared:
        named, (example, *_) = ", ".join([*shared][:3]), shared.values()
        say(f"labels: several classes share {named}; they get the index, as in {example!r}")
    return told_apart


def tell_apart(labels: Sequence[str]) -> list[str]:
    """Adds the index to labels that several classes share, because replies are keyed by label."""
    counts = Counter(labels)
    return [
        f"{label} ({index})" if counts[label] > 1 else label for index, label in enumerate(labels)
    ]


def _from_lines(path: Path, text: str) -> list[str]:
    lines = text.rstrip().splitlines()
    for pattern in NUMBERED:
        found = [match for line in lines if (match := re.fullmatch(pattern, line))]
        labels = {int(match["number"]): match["label"].strip("'\"") for match in found}
        if not lines or len(found) < len(lines):
            continue
        if sorted(labels) == [*range(len(lines))]:
            return [label for _, label in sorted(labels.items())]
        if max(labels) == len(lines) or any(match["mark"].strip(" ") for match in found):
            raise WrongOption(
                f"{path.name} has numbers in its lines, but not 0 to {len(lines) - 1}: "
                f"{lines[0]!r}; expected one label per line in the order of the classes, or JSON"
            )
    return lines


def _from_json(path: Path, text: str) -> list[str]:
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise WrongOption(f"{path.name} is not JSON: {error}") from error
    for key, kind in (("id2label", dict), ("object_type_names", list)):
        if isinstance(mapping, dict) and isinstance(mapping.get(key), kind):
            mapping = mapping[key]
    if isinstance(mapping, list) and all(isinstance(label, str) for label in mapping):
        return mapping
    if not isinstance(mapping, dict):
        raise WrongOption(
            f'{path.name} must map class indices to labels, as in {{"0": "cat", "1": "dog"}}, '
            "or be a list of labels"
        )
    numbers = [*mapping.values()]
    if numbers and all(type(number) is int for number in numbers):
        mapping = dict(zip(numbers, mapping))  # ImageFolder's class_to_idx
    mapping = {str(key): value for key, value in mapping.items()}
    labels = []
    for index in range(len(numbers)):
        value = mapping.get(str(index))
        label = value[-1] if isinstance(value, list) and value else value
        if not isinstance(label, str):
            raise WrongOption(f"{path.name} has no label for class {index}")
        labels.append(label)
    return labels
