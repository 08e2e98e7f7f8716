"""Requests that came through the front door: a body by name instead of bytes, the client's content
type, and the request's id.

The door (serving/front/) is a web server on this machine that we started. It keeps a large body as
a file in a folder in memory (tmpfs) and sends its name; the file is opened relative to that folder
and mapped. It goes when the request ends; a mapping outlives it.

A name is taken only beside the key of this run, which the door puts in the place of whatever a
client sends. Without the door's two variables in the environment nothing of this happens.
"""

from __future__ import annotations

import hmac
import mmap
import os
import re
import stat
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from offpath.handler.errors import BodyGone, BodyUnreadable, ConfigError
from offpath.handler.request.multipart import Body, read_fields

# The door's word to the workers.
FOLDER_VARIABLE = "OFFPATH_FRONT_FOLDER"
KEY_VARIABLE = "OFFPATH_FRONT_KEY"
# Its word about a request; serving/conf/nginx.conf sets all four on each.
KEY_HEADER = "X-Offpath-Key"
BODY_HEADER = "X-Offpath-Body"
TYPE_HEADER = "X-Offpath-Type"
ID_HEADER = "X-Offpath-Id"

# nginx numbers its files.
FILE_NAME = re.compile(r"[0-9]{1,20}")
# NONBLOCK: a FIFO's open would wait for a writer.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class HandedOver:
    """What one request through the door carries; a named body is opened when first asked for.

    Args:
        door: whose it is; None where the row has the body.
        row: TorchServe's parameters: the body of a small request, the URL's.
        path: of the file with the body, as the door names it; None: the row has the body.
        content_type: what the client said; TorchServe got another, to leave forms alone.
    """

    def __init__(
        self,
        door: FrontDoor | None,
        row: Mapping[str, Any],
        path: str | None,
        content_type: str,
    ) -> None:
        self._door, self._row = door, row
        self._path, self._content_type = path, content_type
        self._fields: Mapping[str, Any] | None = None

    def fields(self) -> Mapping[str, Any]:
        """The request's parameters as TorchServe would have parsed them.

        Raises:
            BodyGone, BodyUnreadable, BadEnvelope: this item gets an error.
        """
        if self._fields is None:
            body = self._row.get("body")
            if self._door is not None and self._path is not None:
                body = self._door.map_body(self._path)
            parsed = parse_body(body or b"", self._content_type)
            self._fields = {**self._row, "body": b"", **parsed}
        return self._fields


class FrontDoor:
    """The folder of bodies and the key of one run of the front door.

    Raises:
        ConfigError: the folder is not there, or others than we can write to it.
    """

    def __init__(self, folder: str, key: str) -> None:
        self._folder, self._key = folder.rstrip("/"), key.encode()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._directory = os.open(self._folder, flags)
        except OSError as error:
            raise ConfigError(f"{FOLDER_VARIABLE}={folder}: {error}") from error
        status = os.fstat(self._directory)
        self._uid = os.getuid()
        if status.st_uid != self._uid or stat.S_IMODE(status.st_mode) != 0o700:
            raise ConfigError(f"{FOLDER_VARIABLE}={folder}: not our own with mode 0700")

    @classmethod
    def from_environment(cls) -> FrontDoor | None:
        """The door that this server stands behind; None without one."""
        folder, key = os.environ.get(FOLDER_VARIABLE), os.environ.get(KEY_VARIABLE)
        return cls(folder, key) if folder and key else None

    def take_over(
        self, row: Mapping[str, Any], headers: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """A row of TorchServe's -> the row to read; the same where the door has not sent it."""
        if not self.has_sent(headers):
            return row
        path, content_type = headers.get(BODY_HEADER), headers.get(TYPE_HEADER)
        return {"body": HandedOver(self, row, path or None, str(content_type or ""))}

    def has_sent(self, headers: Mapping[str, Any]) -> bool:
        """Whether a request has this run's key."""
        key = headers.get(KEY_HEADER)
        # A form's field of that name is no text here: ts/service.py puts its headers there.
        return isinstance(key, str) and hmac.compare_digest(key.encode(), self._key)

    def request_id(self, headers: Mapping[str, Any]) -> str | None:
        """The id that the door has given a request; None where the door has not sent it."""
        return headers.get(ID_HEADER) if self.has_sent(headers) else None

    def map_body(self, path: str) -> Body:
        """Maps a body, read-only.

        Raises:
            BodyGone: the client has left, and the door has taken the file away.
            BodyUnreadable: anything else.
        """
        folder, _, name = path.rpartition("/")
        if folder != self._folder or FILE_NAME.fullmatch(name) is None:
            raise BodyUnreadable("the body's name is none of the front door's")
        try:
            file = os.open(name, OPEN_FLAGS, dir_fd=self._directory)
        except FileNotFoundError as error:
            raise BodyGone("the client left before its picture was read") from error
        except OSError as error:
            raise BodyUnreadable("the body cannot be opened") from error
        try:
            return self._map(file)
        finally:
            os.close(file)

    def _map(self, file: int) -> Body:
        status = os.fstat(file)
        is_ours = status.st_uid == self._uid and status.st_nlink <= 1
        if not stat.S_ISREG(status.st_mode) or not is_ours:
            raise BodyUnreadable("the body is no file of the front door's")
        if status.st_size == 0:
            return b""
        try:
            return mmap.mmap(file, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise BodyUnreadable("the body cannot be mapped") from error


def fields_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a row, wherever they are.

    Raises:
        ItemError: see `HandedOver.fields`.
    """
    body = row.get("body")
    return body.fields() if isinstance(body, HandedOver) else row


def parse_body(body: Body, content_type: str) -> dict[str, Any]:
    """Body -> parameters: a multipart form's fields, else the body itself."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == MULTIPART:
        return dict(read_fields(body, content_type))
    if kind == FORM and body[:5] == b"data=":
        return {"data": unquote_to_bytes(bytes(body[5:]))}
    # `curl --data-binary` calls anything a form.
    return {"body": memoryview(body)}
