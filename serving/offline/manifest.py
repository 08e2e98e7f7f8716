"""The list of a run's images, stored beside the results before the first part.

Parts follow from it, so a run that was killed continues with the same parts.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from offpath.archive.mar_file import MAX_RATIO, SMALL_BYTES
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.image import SUFFIXES
from offpath.serving.printable import printable
from offpath.serving.storage import READERS, S3, Storage

logger = logging.getLogger(__name__)
IMAGE_LIST = "_manifest.json.gz"
# Parts per worker, so that the last parts of all workers end at about the same time.
PARTS_PER_WORKER = 32
MIN_PART, MAX_PART = 16, 2000


@dataclass(frozen=True)
class Manifest:
    """A run.

    Attributes:
        input: INPUT of the command.
        archive: SHA-256 of the archive.
        part_size: images per part.
        images: their names, without repetitions.
    """

    input: str
    archive: str
    part_size: int
    images: list[str]

    def __post_init__(self) -> None:
        names, size = self.images, self.part_size
        is_list = type(names) is list and {*map(type, names)} == {str}
        if not is_list or len(set(names)) < len(names) or type(size) is not int or size < 1:
            raise ValueError("it is no list of images, each once, in parts of one or more")

    def parts(self) -> dict[str, list[str]]:
        """Returns the name of each part's file with the part's images."""
        size = self.part_size
        return {
            f"part-{number:05}.jsonl": self.images[start : start + size]
            for number, start in enumerate(range(0, len(self.images), size))
        }


def choose_part_size(images: int, workers: int) -> int:
    size = -(-images // (PARTS_PER_WORKER * workers))
    return max(MIN_PART, min(MAX_PART, size))


def list_images(storage: Storage, place: str) -> list[str]:
    """Returns the images of a folder, an s3:// prefix, or a list; WrongOption without any."""
    path = Path(place)
    if not place.startswith(S3) and not path.is_dir():
        names = read_list(path)
    else:
        ends = {name: os.path.splitext(name)[1].lower() for name in storage.list(place)}
        names = [name for name, end in ends.items() if end in SUFFIXES]
        if others := Counter(end for end in ends.values() if end not in SUFFIXES):
            kinds = printable(", ".join(end or "none" for end, _ in others.most_common(5)))
            logger.warning("%d files are no images, by their suffixes: %s", others.total(), kinds)
    if not names:
        raise WrongOption(
            f"INPUT {place!r} holds no images, by the ends of their names; pass a text file with "
            "the names of others"
        )
    return names


def read_list(path: Path) -> list[str]:
    """Reads a list of paths and s3:// names, each once; paths become absolute."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except FileNotFoundError:
        raise WrongOption(f"INPUT {str(path)!r}: no such folder or file") from None
    except UnicodeDecodeError as error:
        raise WrongOption(
            f"INPUT {str(path)!r} is not a list of images ({error}); expected a folder, "
            "s3://BUCKET/PREFIX, or a text file with one path per line"
        ) from error
    names = (line.strip() for line in lines if line.strip())
    return list(dict.fromkeys(n if n.startswith(S3) else os.path.abspath(n) for n in names))


def find_manifest(storage: Storage, output: str, wanted: dict[str, str], workers: int) -> Manifest:
    """Reads the manifest of an earlier run, or lists the images and stores a new one.

    Args:
        wanted: input and archive.

    Raises:
        WrongOption: the earlier run was another, OUTPUT holds something else, or there are no
            images.
    """
    try:
        content = storage.read(f"{output}/{IMAGE_LIST}")
    except FileNotFoundError:
        if any("/." not in name[len(output) :] for name in storage.list(output)):
            raise WrongOption(
                f"OUTPUT {output!r} holds files but no {IMAGE_LIST}; choose an empty place"
            ) from None
        images = list_images(storage, wanted["input"])
        size = choose_part_size(len(images), workers)
        made = Manifest(**wanted, part_size=size, images=images)
        content = gzip.compress(json.dumps(asdict(made)).encode(), 1, mtime=0)
        storage.write(f"{output}/{IMAGE_LIST}", content)
        return made
    try:
        found = parse_manifest(content)
    except Exception as error:  # gzip, zlib and json raise a dozen kinds
        raise WrongOption(
            f"OUTPUT {output!r} holds a {IMAGE_LIST} that this command did not write "
            f"({str(error):.99}); choose another OUTPUT"
        ) from error
    for key, value in wanted.items():
        if getattr(found, key) != value:
            raise WrongOption(
                f"OUTPUT {output!r} was begun with another {key} ({getattr(found, key)!r:.80}); "
                "choose another OUTPUT, or repeat the first command"
            )
    return found


def parse_manifest(content: bytes) -> Manifest:
    """Reads a manifest as it is stored; raises errors of any kind for other files."""
    max_bytes = MAX_RATIO * len(content) + SMALL_BYTES
    with gzip.open(io.BytesIO(content)) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError(f"it unpacks to more than {max_bytes:,} bytes")
    return Manifest(**json.loads(text))


def count_results(storage: Storage, output: str, parts: Iterable[str]) -> Counter[str | None]:
    """Counts the rows of all parts by the type of the error; None stands for an answer."""

    def count(part: str) -> Counter[str | None]:
        content = storage.read(f"{output}/{part}")
        try:
            return Counter(orjson.loads(line)["error"] for line in content.splitlines())
        except (ValueError, KeyError, TypeError) as error:
            raise ExpectedError(
                f"{output}/{part} is damaged; delete it, and the same command makes it again"
            ) from error

    counts: Counter[str | None] = Counter()
    with ThreadPoolExecutor(READERS) as pool:
        for some in pool.map(count, parts):
            counts += some
    return counts
