from __future__ import annotations

from pathlib import Path

import pytest

from offpath.archive.labels import read_labels
from offpath.errors import ExpectedError


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("a.txt", "cat\ndog\nni\u00f1o\n", id="one-a-line"),
        pytest.param("a.txt", "\ufeff cat \ndog\nni\u00f1o", id="byte-order-mark"),
        pytest.param("a.json", '["cat", "dog", "ni\\u00f1o"]', id="json-list"),
        pytest.param("a.json", '{"2": "ni\u00f1o", "0": "cat", "1": "dog"}', id="json-by-index"),
        pytest.param(
            "index_to_name.json",
            '{"object_type_names": ["cat", "dog", "ni\\u00f1o"]}',
            id="torchserves-older-examples",
        ),
        pytest.param(
            "index_to_name.json",
            '{"0": ["n01", "cat"], "1": ["n02", "dog"], "2": ["n03", "ni\u00f1o"]}',
            id="torchserves-pairs",
        ),
    ],
)
def test_labels_are_read(tmp_path: Path, name: str, content: str) -> None:
    assert read_labels(write(tmp_path, name, content)) == ["cat", "dog", "ni\u00f1o"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.txt", "cat\n\ndog", "no label for class 1", id="gap"),
        pytest.param("a.txt", b"\xff\xfe\x00", "not UTF-8", id="binary"),
        pytest.param("a.json", "{", "is not JSON", id="broken-json"),
        pytest.param("a.json", '{"0": "a", "2": "b"}', "for class '1'", id="json-gap"),
        pytest.param("a.json", '{"a": 0, "b": 1}', "for class 'a'", id="inverted"),
        pytest.param("a.json", '{"0": []}', "for class '0'", id="empty-pair"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(ExpectedError, match=message):
        read_labels(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("content", "labels", "said"),
    [
        pytest.param('{"0": "cat", "1": ["n02", "dog"], "2": "owl"}', None, "", id="all"),
        pytest.param('{"0": "cat", "2": "owl"}', ["cat", "1", "owl"], "1 have none", id="gap"),
        pytest.param(
            '{"0": "cat", "1": "dog", "2": "owl", "99999999999": "x"}', None, "has 4 for 3",
            id="many",
        ),
        pytest.param('{"object_type_names": ["cat", "dog"]}', ["cat", "dog", "2"], "", id="list"),
        pytest.param('{"0": "1", "2": "owl"}', ["1 (0)", "1 (1)", "owl"], "share 1", id="clash"),
    ],
)  # fmt: skip
def test_labels_of_an_old_archive_are_fitted_to_its_classes(
    tmp_path: Path, content: str, labels: list[str] | None, said: str
) -> None:
    path, lines = write(tmp_path, "index_to_name.json", content), []
    assert read_labels(path, lines.append, 3) == (labels or ["cat", "dog", "owl"])
    assert said in "\n".join(lines) and bool(said) <= bool(lines)
    assert read_labels(path, classes=0) == []
