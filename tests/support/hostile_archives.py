"""Archives that damage, time or malice could have made; none of them may be read."""

from __future__ import annotations

import json
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offpath.archive.mar_file import HANDLER_API, HANDLER_API_KEY, MANIFEST

MODEL = {"modelName": "m", "modelVersion": "1.0", "handler": "image_classifier"}
STOCK = {**MODEL, "modelFile": "net.py", "serializedFile": "net.pt"}
# It runs in a folder of its own, with few variables.
CLASS_FILE = "import pathlib\n\n(pathlib.Path.home() / 'ran').touch()\n"
FILES = {
    "net.py": CLASS_FILE.encode(),
    "net.pt": b"weights",
    "offpath/handler/classifier.py": b"",
}
# Nine levels of nine aliases: 387 million words in 200 bytes.
ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
ESCAPES = "\x1b]0;owned\x07\x1b[2J"

Make = Callable[[Path], None]


def pack(
    path: Path,
    manifest: object,
    files: Mapping[str, bytes] = FILES,
    names: Mapping[zipfile.ZipInfo, bytes] = {},
) -> None:
    """Writes an archive; `names` are further members."""
    if isinstance(manifest, dict):
        manifest = {HANDLER_API_KEY: HANDLER_API, **manifest}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = manifest if isinstance(manifest, bytes) else json.dumps(manifest)
        archive.writestr(MANIFEST, text)
        for name, content in {**files, **names}.items():
            archive.writestr(name, content)


def with_model(**changes: Any) -> Make:
    """Returns what packs an archive whose manifest has these values."""
    return lambda path: pack(path, {"model": {**STOCK, **changes}})


def with_member(name: str, content: bytes = b"x", mode: int = 0o644) -> Make:
    info = zipfile.ZipInfo(name)
    info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
    return lambda path: pack(path, {"model": MODEL}, names={info: content})


def with_yaml(text: str) -> Make:
    model = {**MODEL, "configFile": "c.yaml", "serializedFile": "net.pt"}
    files = {**FILES, "c.yaml": text.encode()}
    return lambda path: pack(path, {"model": model}, files)


def write_twice(path: Path) -> None:
    pack(path, {"model": MODEL})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(MANIFEST, json.dumps({"model": {**MODEL, "modelName": "n"}}))


def write_quine(path: Path) -> None:
    """One gigabyte declared a hundred times over the same bytes of the file."""
    pack(path, {"model": MODEL}, {"zeros": bytes(8 << 20)})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")  # the last entry of the directory, of `zeros`
    name = content[at + 46 : at + 51]
    entries = b"".join(
        bytes(content[at : at + 46]) + name[:3] + f"{n:02d}".encode() for n in range(99)
    )
    end = content.rindex(b"PK\x05\x06")
    tail = bytearray(content[end:])
    count, size = struct.unpack_from("<HI", tail, 10)
    struct.pack_into("<HHI", tail, 8, count + 99, count + 99, size + len(entries))
    path.write_bytes(bytes(content[:end]) + entries + bytes(tail))


def write_damaged(path: Path) -> None:
    pack(path, {"model": MODEL})
    content = bytearray(path.read_bytes())
    content[len(MANIFEST) + 34] ^= 0xFF
    path.write_bytes(bytes(content))


# Refused by whatever reads an archive.
HOSTILE: dict[str, Make] = {
    "no-zip": lambda path: path.write_bytes(b"none") and None,
    "folder": lambda path: path.mkdir(),
    "no-manifest": lambda path: zipfile.ZipFile(path, "w").close(),
    "manifest-is-deep": lambda path: pack(path, b"[" * 100_000),
    "manifest-is-long": lambda path: pack(path, b" " * (3 << 20)),
    "manifest-is-null": lambda path: pack(path, None),
    "model-is-a-list": lambda path: pack(path, {"model": []}),
    "name-with-escapes": with_model(modelName=f"m{ESCAPES}"),
    "name-is-long": with_model(modelName="m" * 900_000 + "/"),
    "name-is-a-path": with_model(modelName="../../m"),
    "name-is-a-script": with_model(modelName="<script>alert(1)</script>"),
    "version-with-escapes": with_model(modelVersion=ESCAPES),
    "handler-with-escapes": with_model(handler=f"h{ESCAPES}"),
    "model-file-above": with_model(modelFile="../net.py"),
    "weights-absolute": with_model(serializedFile="/etc/passwd"),
    "config-missing": with_model(configFile="gone.yaml"),
    "member-absolute": with_member("/tmp/offpath-owned"),
    "member-above": with_member("../../offpath-owned"),
    "member-with-escapes": with_member(f"a{ESCAPES}"),
    "member-is-a-link": with_member("link", b"/etc/passwd", stat.S_IFLNK | 0o777),
    "twice-the-same-name": write_twice,
    "bomb": with_member("zeros", bytes(80 << 20)),
    "bomb-of-shared-bytes": write_quine,
    "damaged": write_damaged,
    "yaml-aliases": with_yaml(ALIASES),
    "yaml-merged-aliases": with_yaml(
        "a0: &a0 {k: x}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 40)}]}}\n" for n in (1, 2, 3, 4))
    ),
    "yaml-loop": with_yaml("a: &a [*a]\n"),
    "yaml-number": with_yaml(f"batchSize: 0x{'f' * 50_000}\n"),
    "yaml-python": with_yaml("a: !!python/object/apply:os.system ['touch ran']\n"),
    "yaml-binary": with_yaml("\x00"),
}  # fmt: skip


def write_hostile(folder: Path, name: str) -> Path:
    """Writes one of HOSTILE as `<folder>/hostile.mar`."""
    path = folder / "hostile.mar"
    HOSTILE[name](path)
    return path
