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
        pytest.param("a.txt", "0,cat\n1,dog\n2,ni\u00f1o", id="number-and-comma"),
        pytest.param("a.txt", "2 ni\u00f1o\n0 cat\n1 dog", id="number-and-space"),
        pytest.param("a.tsv", "cat\t0\ndog\t1\nni\u00f1o\t2\n", id="label-and-number"),
        pytest.param("a.json", '{"dog": 1, "cat": 0, "ni\u00f1o": 2}', id="class_to_idx"),
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


def test_lines_that_only_begin_with_numbers_stay_as_they_are(tmp_path: Path) -> None:
    euros = ["5 euro", "10 euro", "20 euro"]
    assert read_labels(write(tmp_path, "a.txt", "\n".join(euros))) == euros


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.txt", "cat\n\ndog", "no label for class 1", id="gap"),
        pytest.param("a.txt", b"\xff\xfe\x00", "not UTF-8", id="binary"),
        pytest.param("a.json", "{", "is not JSON", id="broken-json"),
        pytest.param("a.json", '{"a": 0, "b": 2}', "for class 1", id="class_to_idx-gap"),
        pytest.param("a.json", '{"a": 0, "b": 0}', "for class 1", id="class_to_idx-doubled"),
        pytest.param("a.txt", "1,cat\n2,dog", "not 0 to 1: '1,cat'", id="numbers-from-1"),
        pytest.param("a.txt", "1 cat\n2 dog", "not 0 to 1: '1 cat'", id="numbers-from-1-space"),
        pytest.param("a.json", '{"0": []}', "for class 0", id="empty-pair"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(ExpectedError, match=message):
        read_labels(write(tmp_path, name, content))
