"""Writes archives, and reads those that strangers may have made: .mar files, or folders."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

from offpath.archive.model_config import load_yaml
from offpath.errors import ExpectedError, WrongOption
from offpath.handler.serving_settings import ServingSettings

MANIFEST = "MAR-INF/MANIFEST.json"
OUR_HANDLER = "offpath/handler/classifier.py"
OUR_MARK = "offpath/custom_handler.txt"
# The manifest's number of what a server calls on offpath's handler. It grows when a server of this
# version could not serve an archive of the one before.
HANDLER_API = 3
HANDLER_API_KEY = "handler_api"
LABELS = "index_to_name.json"
NO_LABELS = "no labels, so answers name classes by number"
LABELS_CURE = "offpath archive --labels FILE ..."
# torch-model-archiver's own rule (model_archiver/model_packaging_utils.py).
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
# The earliest date that zip can hold. The current date would make every build differ.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
CREATED_ON = "01/01/1980 00:00:00"
# Keys of the manifest whose values are files of the archive.
FILE_KEYS = ("modelFile", "serializedFile", "configFile", "requirementsFile")
MAX_MANIFEST_BYTES = 1 << 20
# Deflate packs weights to nine tenths, and zeros to a thousandth.
MAX_RATIO = 100
SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class MarFile:
    """Metadata of an archive.

    Attributes:
        model_name: name under which TorchServe serves it by default.
        model_config: content of its model-config.yaml; None without one.
        has_our_handler: the archive contains offpath's handler.
        manifest: its MANIFEST.json; the files that `model` names in it are in the archive.
        names: the archive's files.
    """

    path: Path
    model_name: str
    model_version: str
    handler: str
    model_config: dict[str, Any] | None
    has_our_handler: bool = False
    manifest: Mapping[str, Any] = field(default_factory=dict)
    names: frozenset[str] = frozenset()

    @cached_property
    def serving(self) -> ServingSettings:
        """The settings for servers in its model-config.yaml, the defaults without one."""
        return ServingSettings.from_mapping(self.model_config or {})

    @property
    def lacks_labels(self) -> bool:
        """offpath's handler has nothing to name this archive's classes by."""
        return self.has_our_handler and LABELS not in self.names


def write_mar(path: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes | Path]) -> None:
    """Writes an archive; equal inputs give equal bytes.

    Files are stored uncompressed: weights hardly compress, and every worker reads them at start.

    Args:
        manifest: gets the number of the handler's interface, and a fixed date.
        files: name in the archive -> content, or the file that has it.
    """
    manifest = {**manifest, "createdOn": CREATED_ON}
    if OUR_HANDLER in files:
        manifest[HANDLER_API_KEY] = HANDLER_API
    files = {**files, MANIFEST: json.dumps(manifest, indent=2, sort_keys=True).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, ZIP_DATE)
            info.external_attr = 0o644 << 16
            archive.writestr(info, content if isinstance(content, bytes) else content.read_bytes())


def check_runs_alone(archive: MarFile) -> None:
    """Refuses an archive whose handler needs a server.

    Raises:
        WrongOption: the archive has another handler than offpath's.
    """
    if not archive.has_our_handler:
        raise WrongOption(
            f"{archive.path} has another handler than offpath's, which only `offpath serve` runs; "
            "build the archive with `offpath archive`, also from this one with --from"
        )


def read_mar(path: Path, is_old_accepted: bool = False) -> MarFile:
    """Reads an archive's manifest and model config.

    Args:
        is_old_accepted: returns archives of earlier versions of offpath too, to convert them.

    Raises:
        WrongOption: the file is missing or not a .mar, could write outside of the folder that it is
            unpacked to or fill the disk, its YAML is not a mapping, or its handler is one of
            offpath's that this version cannot serve.
    """
    with _open_mar(path) as archive:
        if isinstance(archive, zipfile.ZipFile):
            _check_members(archive, path.stat().st_size)
        names = frozenset(n for n in archive.namelist() if not n.endswith("/"))
        manifest = _read_manifest(archive, names)
        model = manifest["model"]
        config_name = model.get("configFile")
        text = _read_text(archive, config_name) if config_name else None
    source, model_config = f"model-config.yaml in {path}", None
    if text is not None:
        model_config = load_yaml(text, source) or {}
        if not isinstance(model_config, dict):
            raise WrongOption(f"{source} is not a mapping")
    has_our_handler = OUR_HANDLER in names
    found = manifest.get(HANDLER_API_KEY, 0)  # the first archives had none
    is_old = type(found) is int and found < HANDLER_API
    if has_our_handler and found != HANDLER_API and not (is_old and is_old_accepted):
        cure = f"offpath archive --from {path}" if is_old else "install the offpath that built it"
        raise WrongOption(
            f"{path}: {HANDLER_API_KEY} in its manifest is {found!r:.80}, expected {HANDLER_API}; "
            f"{cure}"
        )
    return MarFile(
        path=path,
        model_name=model["modelName"],
        model_version=model.get("modelVersion") or "1.0",
        handler=model.get("handler") or "",
        model_config=model_config,
        has_our_handler=has_our_handler,
        manifest=manifest,
        names=names,
    )


def read_archives(model_store: Path, entries: Iterable[str]) -> list[tuple[str, MarFile]]:
    """Reads the archives to serve, each with the name that its model is served under.

    Args:
        entries: `file.mar`, or `name=file.mar`, as TorchServe's load_models takes them.

    Raises:
        WrongOption: a file is missing or not an archive, or two hold the same name and version.
    """
    archives: list[tuple[str, MarFile]] = []
    for entry in entries:
        name, _, file = entry.rpartition("=")
        archive = read_mar(model_store / file)
        name, version = name or archive.model_name, archive.model_version
        if any((name, version) == (one, it.model_version) for one, it in archives):
            raise WrongOption(
                f"two archives hold {name} {version}; rename one with NAME=PATH.mar, or build it "
                "again with another version"
            )
        archives.append((name, archive))
    return archives


def unpack_mar(archive: MarFile, folder: Path, names: Iterable[str] | None = None) -> None:
    """Writes an archive's files, or those with these names, to a folder.

    Raises:
        WrongOption: the archive is damaged, or the folder cannot be written.
        ExpectedError: the folder's disk is full.
    """
    try:
        with _open_mar(archive.path) as content:
            content.extractall(folder, names)
    except OSError as error:
        raise ExpectedError(
            f"no room to unpack {archive.path} in {folder} ({error.strerror}); make room there"
        ) from error


def unpack_missing(path: Path, folder: Path, changed_ns: int) -> None:
    """Unpacks the files of an archive that its folder has lost, to a cleaner of /tmp for example.

    An archive that was replaced since `changed_ns` would not fit those that are left.

    Raises:
        WrongOption: the archive cannot be read.
        ExpectedError: the folder's disk is full.
    """
    if not path.exists() or path.stat().st_mtime_ns != changed_ns:
        return
    archive = read_mar(path)
    missing = [name for name in archive.names if not (folder / name).exists()]
    if not missing:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Other workers may do the same and must not see half a file.
    with tempfile.TemporaryDirectory(dir=folder) as new:
        unpack_mar(archive, Path(new), missing)
        for name in missing:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(new, name), folder / name)


def copy_mar(archive: MarFile, target: Path, changed: Mapping[str, bytes]) -> None:
    """Copies an archive with files replaced or added.

    Raises:
        WrongOption: the archive is damaged, or the copy cannot be written.
    """
    with _open_mar(archive.path) as old, zipfile.ZipFile(target, "w") as new:
        for name in sorted(archive.names - changed.keys()):
            with old.open(name) as source, new.open(name, "w", force_zip64=True) as copy:
                shutil.copyfileobj(source, copy)
        for name, content in changed.items():
            new.writestr(name, content)


def is_model_folder(path: Path) -> bool:
    """Tells whether a folder is an archive that was made with `--archive-format no-archive`."""
    return (path / MANIFEST).is_file()


class _ModelFolder:
    """Such a folder, with the methods of zipfile.ZipFile."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def namelist(self) -> list[str]:
        """Returns its files; raises ValueError if it has links or devices."""
        names = []
        for path in sorted(self._path.rglob("*")):
            name, mode = path.relative_to(self._path).as_posix(), path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not name.isprintable():
                raise ValueError(f"its file {name!r:.80} is a link, or no file")
            names.append(f"{name}/" if stat.S_ISDIR(mode) else name)
        return names

    def open(self, name: str) -> IO[bytes]:
        return (self._path / name).open("rb")

    def extractall(self, folder: Path, names: Iterable[str] | None = None) -> None:
        for name in self.namelist() if names is None else names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                target.mkdir(exist_ok=True)
            else:
                shutil.copyfile(self._path / name, target)


@contextmanager
def _open_mar(path: Path) -> Iterator[zipfile.ZipFile | _ModelFolder]:
    if not path.exists():
        raise WrongOption(f"there is no archive at {path}; `offpath archive` makes one")
    try:
        is_folder = is_model_folder(path)
        with nullcontext(_ModelFolder(path)) if is_folder else zipfile.ZipFile(path) as archive:
            yield archive
    except ExpectedError:
        raise
    # A damaged or hostile file makes zipfile, zlib and json raise errors of a dozen kinds.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # where the copy goes
        problem = f"{error or type(error).__name__}"
        raise WrongOption(
            f"{path} is not a TorchServe archive ({problem}); expected a .mar made by "
            "`offpath archive` or torch-model-archiver"
        ) from error


def _check_members(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    """Refuses what TorchServe and Python would unpack differently, elsewhere, or without end."""
    members = archive.infolist()
    if len({info.filename for info in members}) < len(members):
        raise ValueError("it has two files of one name")
    for info in members:
        name = PurePosixPath(info.filename)
        is_link = stat.S_ISLNK(info.external_attr >> 16)
        is_outside = name.is_absolute() or ".." in name.parts or not name.parts
        if is_link or is_outside or not info.filename.isprintable():
            raise ValueError(f"its file {info.filename!r:.80} is a link, or lies outside of it")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"its file {info.filename!r:.80} has a compression that TorchServe cannot read"
            )
    check_unpacked_size(archive, packed_bytes)


def check_unpacked_size(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    """Raises ValueError for a zip bomb."""
    unpacked_bytes = sum(info.file_size for info in archive.infolist())
    if unpacked_bytes > MAX_RATIO * packed_bytes + SMALL_BYTES:
        raise ValueError(f"its {packed_bytes:,} bytes unpack to {unpacked_bytes:,}")


def _read_manifest(
    archive: zipfile.ZipFile | _ModelFolder, names: frozenset[str]
) -> dict[str, Any]:
    """Returns the manifest. What TorchServe reads of its section `model` is printable text."""
    manifest: dict[str, Any] = json.loads(_read_text(archive, MANIFEST))
    model = manifest.get("model") if isinstance(manifest, dict) else None
    if not isinstance(model, dict):
        raise ValueError("its manifest has no section `model`")
    for key in ("modelName", "modelVersion", "handler", *FILE_KEYS):
        value = model.get(key)
        if value is None and key != "modelName":
            continue
        if isinstance(value, (int, float)):  # Java reads a number as its text
            value = model[key] = str(value)
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{key} in its manifest is {value!r:.80}, expected a text")
        if key in FILE_KEYS and value and value not in names:
            raise ValueError(f"{key} in its manifest is {value!r:.80}, which is not in it")
    if NAME_PATTERN.fullmatch(model["modelName"]) is None:
        raise ValueError(
            f"modelName in its manifest is {model['modelName']!r:.80}, expected letters, digits, "
            "'_', '-' and '.'"
        )
    return manifest


def _read_text(archive: zipfile.ZipFile | _ModelFolder, name: str) -> bytes:
    # Not archive.read, which unpacks up to 2 GB before it looks at the declared size.
    with archive.open(name) as file:
        text = file.read(MAX_MANIFEST_BYTES + 1)
    if len(text) > MAX_MANIFEST_BYTES:
        raise ValueError(f"{name} is longer than {MAX_MANIFEST_BYTES:,} bytes")
    return text
