"""Reads requests from the front door: the body may be a file's name instead of bytes.

The front door (serving/front/) is a web server that `offpath` starts on this machine. It stores a
body as a file in a folder in memory (tmpfs) and sends the file's name, the client's content
type and an id for the request. The file is opened relative to that folder and mapped. The door
removes the file when the request ends; a mapping outlives it.

A name is accepted only together with the key of this run. The door overwrites the key header of
every client. Without the door's two variables in the environment this module does nothing.
"""

from __future__ import annotations

import hmac
import mmap
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from offpath.handler.errors import BodyGone, BodyUnreadable, ConfigError
from offpath.handler.request.forms import Body, parse_body
from offpath.handler.wire_names import (
    BODY_HEADER,
    FOLDER_VARIABLE,
    ID_HEADER,
    KEY_HEADER,
    KEY_VARIABLE,
    TYPE_HEADER,
)

# nginx names its files by numbers.
FILE_NAME = re.compile(r"[0-9]{1,20}")
# NONBLOCK, because opening a FIFO would wait for a writer.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UnparsedRequest:
    """A request whose body nobody has parsed yet; a named body is opened on first use.

    Args:
        door: the front door; None if the row has the body.
        row: TorchServe's parameters: those of the URL, and the body if the door sent bytes.
        path: path of the file with the body, as the door gives it; None if the row has the body.
        content_type: the client's content type. TorchServe gets another one, so that it does not
            parse forms.
    """

    def __init__(
        self,
        door: DoorBodies | None,
        row: Mapping[str, Any],
        path: str | None,
        content_type: str,
    ) -> None:
        self._door, self._row = door, row
        self._path, self._content_type = path, content_type
        self._fields: Mapping[str, Any] | None = None

    def fields(self) -> Mapping[str, Any]:
        """Returns the request's parameters as TorchServe would have parsed them.

        Raises:
            BodyGone, BodyUnreadable, BadEnvelope: the body cannot be read or parsed.
        """
        if self._fields is None:
            body = self._row.get("body")
            if self._door is not None and self._path is not None:
                body = self._door.map_body(self._path)
            parsed = parse_body(body or b"", self._content_type)
            self._fields = {**self._row, "body": b"", **parsed}
        return self._fields


class DoorBodies:
    """The folder of bodies and the key of one run of the front door.

    Raises:
        ConfigError: the folder is missing, or other users can write to it.
    """

    def __init__(self, folder: str, key: str) -> None:
        self._folder, self._key = folder.rstrip("/"), key.encode()
        self._uid = os.getuid()
        try:
            self._directory = self._open_folder()
        except OSError as error:
            raise ConfigError(f"{FOLDER_VARIABLE}={folder}: {error}") from error

    def _open_folder(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(self._folder, flags)
        status = os.fstat(directory)
        if status.st_uid != self._uid or stat.S_IMODE(status.st_mode) != 0o700:
            os.close(directory)
            raise OSError("the folder must belong to this user, with mode 0700")
        return directory

    @classmethod
    def from_environment(cls) -> DoorBodies | None:
        """Returns the bodies of this server's front door; None without one."""
        folder, key = os.environ.get(FOLDER_VARIABLE), os.environ.get(KEY_VARIABLE)
        return cls(folder, key) if folder and key else None

    def wrap_row(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Row:
        """Wraps a row that the door has sent; other rows are returned unchanged."""
        if not self.has_sent(headers):
            return row
        path, content_type = headers.get(BODY_HEADER), headers.get(TYPE_HEADER)
        return UnparsedRequest(self, row, path or None, str(content_type or ""))

    def has_sent(self, headers: Mapping[str, Any]) -> bool:
        """Returns True if a request has this run's key."""
        key = headers.get(KEY_HEADER)
        # For a form's field of that name ts/service.py puts a dict here, not text.
        return isinstance(key, str) and hmac.compare_digest(key.encode(), self._key)

    def request_id(self, headers: Mapping[str, Any]) -> str | None:
        """Returns the door's id of a request; None if the door has not sent the request."""
        return headers.get(ID_HEADER) if self.has_sent(headers) else None

    def map_body(self, path: str) -> Body:
        """Maps a body, read-only.

        Raises:
            BodyGone: the client has left, and the door has removed the file.
            BodyUnreadable: the file cannot be used for any other reason.
        """
        folder, _, name = path.rpartition("/")
        if folder != self._folder or FILE_NAME.fullmatch(name) is None:
            raise BodyUnreadable("the body's name is not a name of the front door")
        try:
            if os.fstat(self._directory).st_nlink == 0:  # removed, and the door makes it again
                self._directory = self._open_folder()
            file = os.open(name, OPEN_FLAGS, dir_fd=self._directory)
        except FileNotFoundError as error:
            raise BodyGone("the client left before its image was read") from error
        except OSError as error:
            raise BodyUnreadable("the body's file cannot be opened") from error
        try:
            return self._map(file)
        finally:
            os.close(file)

    def _map(self, file: int) -> Body:
        status = os.fstat(file)
        is_ours = status.st_uid == self._uid and status.st_nlink <= 1
        if not stat.S_ISREG(status.st_mode) or not is_ours:
            raise BodyUnreadable("the body's file was not written by the front door")
        if status.st_size == 0:
            return b""
        try:
            return mmap.mmap(file, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise BodyUnreadable("the body's file cannot be mapped") from error


# A request as the server has parsed it, by its parameters, or as nobody has.
Row = Mapping[str, Any] | UnparsedRequest


def read_fields(row: Row) -> Mapping[str, Any]:
    """Returns the parameters of a row; parses its body if nobody has done so yet.

    Raises:
        ItemError: the body cannot be read or parsed.
    """
    return row.fields() if isinstance(row, UnparsedRequest) else row
