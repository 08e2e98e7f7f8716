"""Reads label files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from offpath.archive import Say, say_nothing
from offpath.errors import WrongOption


def read_labels(path: Path, say: Say = say_nothing, classes: int | None = None) -> list[str]:
    """Reads a file with one label per line, TorchServe's index_to_name.json, or a config.json.

    A value of the JSON is a label, or a list that ends with one: {"0": "cat"},
    {"0": ["n02123045", "cat"]}. Older examples of TorchServe have a list under
    `object_type_names`, and the config.json of a Hugging Face model has labels under `id2label`.

    Args:
        say: told which labels several classes share; these get the index.
        classes: of an index_to_name.json, the number of labels to return. TorchServe looks them up
            by index, so some may be missing, which become the index, or too many.

    Raises:
        WrongOption: the file is missing or unreadable, or an index is missing.
    """
    if not path.is_file():
        raise WrongOption(f"--labels {str(path)!r}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        raise WrongOption(f"{path.name} is not UTF-8 text") from error
    is_json = path.suffix == ".json"
    labels = _from_json(path, text, say, classes) if is_json else text.rstrip().splitlines()
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


def _from_json(path: Path, text: str, say: Say, classes: int | None) -> list[str]:
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise WrongOption(f"{path.name} is not JSON: {error}") from error
    for key, kind in (("id2label", dict), ("object_type_names", list)):
        if isinstance(mapping, dict) and isinstance(mapping.get(key), kind):
            mapping = mapping[key]
    if isinstance(mapping, list) and all(isinstance(label, str) for label in mapping):
        mapping = {str(index): label for index, label in enumerate(mapping)}
    if not isinstance(mapping, dict):
        raise WrongOption(
            f'{path.name} must map class indices to labels, as in {{"0": "cat", "1": "dog"}}, '
            "or be a list of labels"
        )
    labels = {k: one[-1] if isinstance(one, list) and one else one for k, one in mapping.items()}
    count = len(labels) if classes is None else classes
    missing = [index for index, label in labels.items() if not isinstance(label, str)]
    missing += [str(index) for index in range(count) if str(index) not in labels]
    if missing and (classes is None or missing[0] in labels):
        raise WrongOption(f"{path.name} has no label for class {missing[0]!r:.80}")
    if missing or len(labels) > count > 0:
        without = f"; {len(missing)} have none and get the index" if missing else ""
        say(f"labels: {path.name} has {len(labels)} for {count} classes{without}")
    return [labels.get(str(index), str(index)) for index in range(count)]
