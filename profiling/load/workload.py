"""Workloads: named sets of photographs, generated once, cached, checksummed, the same everywhere.

A workload's identity is the SHA-256 over its files' checksums. Results carry it, so that figures
from different photographs are never merged. A cached workload is verified against its manifest at
each load, so that a changed or missing file is an error and is never measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from offpath.archive.photographs import BUNDLED, encode_jpeg, find_sources, make_photograph
from offpath.errors import WrongOption
from offpath.handler.image import SUFFIXES
from offpath.profiling.core.workplace import cache_folder

SET_INDEX = "manifest.json"
# The four photographs in the package, which need no other package.
BUNDLED_NAME = "bundled"
# Raise this when the generator changes, so that older caches are left alone.
GENERATOR_VERSION = 1
QUALITIES = range(40, 97)


@dataclass(frozen=True)
class WorkloadSpec:
    """The properties of a generated workload: pixels, mean bytes of a file, number of files."""

    name: str
    size: tuple[int, int]
    mean_bytes: int
    count: int = 32


SPECS = {
    "photos-1200k": WorkloadSpec("photos-1200k", (2048, 1365), 1_200_000),
    "photos-55k": WorkloadSpec("photos-55k", (500, 333), 55_000),
}


@dataclass(frozen=True)
class Workload:
    """Photographs on disk: their paths in sending order, and the identity over all of them."""

    name: str
    paths: tuple[Path, ...]
    identity: str
    mean_bytes: int

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "mean_bytes": self.mean_bytes,
            "count": len(self.paths),
        }

    def read(self) -> list[bytes]:
        return [path.read_bytes() for path in self.paths]


def load_workload(name: str, progress: Callable[[str], None] = lambda line: None) -> Workload:
    """Loads a generated workload by name (made at first use), or the images of a folder.

    Raises:
        WrongOption: the name is unknown, the folder empty or the cache corrupted.
    """
    spec = SPECS.get(name)
    if name == BUNDLED_NAME:
        return replace(load_folder(BUNDLED), name=name)
    if spec is None:
        return load_folder(Path(name))
    folder = cache_folder() / "workloads" / f"{name}-seed0-v{GENERATOR_VERSION}"
    if not (folder / SET_INDEX).is_file():
        progress(f"making {spec.count} photographs for {name} in {folder}")
        generate(spec, folder)
    return load_verified(name, folder)


def load_folder(folder: Path) -> Workload:
    if not folder.is_dir():
        known = ", ".join(SPECS)
        raise WrongOption(
            f"no workload {str(folder)!r}: expected one of {known}, or a folder of photographs"
        )
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise WrongOption(
            f"no photographs in {str(folder)!r}: expected files ending in"
            f" {', '.join(sorted(SUFFIXES))}"
        )
    for path in paths:
        check_image(path)
    return describe(str(folder), paths, [checksum(path.read_bytes()) for path in paths])


def check_image(path: Path) -> None:
    """Refuses a file whose header is no image's, before minutes are spent on the others."""
    try:
        Image.open(path).close()
    except (OSError, Image.DecompressionBombError) as error:
        raise WrongOption(
            f"{str(path)!r} is no readable image; take it out of the folder"
        ) from error


def load_verified(name: str, folder: Path) -> Workload:
    listed: dict[str, str] = json.loads((folder / SET_INDEX).read_text())["sha256"]
    paths = [folder / file for file in listed]
    for path in paths:
        if not path.is_file() or checksum(path.read_bytes()) != listed[path.name]:
            raise WrongOption(
                f"workload file {str(path)!r} is missing or differs from its manifest;"
                f" delete {str(folder)!r} to make it again"
            )
    return describe(name, paths, list(listed.values()))


def describe(name: str, paths: Sequence[Path], checksums: Sequence[str]) -> Workload:
    mean_bytes = round(sum(path.stat().st_size for path in paths) / len(paths))
    identity = checksum("\n".join(checksums).encode())[:16]
    return Workload(name, tuple(paths), identity, mean_bytes)


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def generate(spec: WorkloadSpec, folder: Path) -> None:
    """Makes the photographs in `folder`, all or none. This takes half a minute at 2048 px."""
    files = {f"{index:03}.jpg": data for index, data in enumerate(encode_all(spec))}
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent))
    for name, data in files.items():
        (staging / name).write_bytes(data)
    manifest = {"sha256": {name: checksum(data) for name, data in files.items()}}
    (staging / SET_INDEX).write_text(json.dumps(manifest, indent=1))
    try:
        os.rename(staging, folder)
    except OSError:
        # Another run finished first, or a broken cache is in the way, which the loader will find.
        shutil.rmtree(staging)


def encode_all(spec: WorkloadSpec) -> list[bytes]:
    """Returns the photographs as JPEGs whose mean size is within 1 % of the wanted size."""
    images = render_images(spec)

    def measure(quality: int) -> int:
        return sum(len(encode_jpeg(image, quality)) for image in images)

    wanted = spec.mean_bytes * spec.count
    above = bisect_left(QUALITIES, wanted, 1, len(QUALITIES) - 1, key=measure)
    return mix_qualities(images, QUALITIES[above - 1], QUALITIES[above], spec.mean_bytes)


def mix_qualities(
    images: Sequence[Image.Image], below: int, above: int, mean_bytes: int
) -> list[bytes]:
    """Encodes images in the higher quality, in order, until the mean size is reached.

    One step of JPEG quality changes the size by up to 15 %, which is too coarse for the whole set.
    """
    files = [encode_jpeg(image, below) for image in images]
    for index, image in enumerate(images):
        if mean_size(files) >= mean_bytes:
            break
        files[index] = encode_jpeg(image, above)
    return files


def render_images(spec: WorkloadSpec) -> list[Image.Image]:
    """Renders distinct images of the sources in turn, each with a random window and noise."""
    sources = [Image.open(path).convert("RGB") for path in find_sources()]
    # The identity of published results rests on these seeds.
    seeds = ((0, index) for index in range(spec.count))
    return [
        make_photograph(sources[seed[1] % len(sources)], spec.size, np.random.default_rng(seed))
        for seed in seeds
    ]


def mean_size(files: Sequence[bytes]) -> float:
    return sum(map(len, files)) / len(files)
