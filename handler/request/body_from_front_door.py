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
from dataclasses import replace

from offpath.handler.contract import Request
from offpath.handler.errors import BodyGone, BodyUnreadable, ConfigError
from offpath.handler.request.forms import Body
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

    def open(self, request: Request) -> Request:
        """Returns a request of the door with the body and the content type that its client sent.

        Other requests are returned unchanged.

        Raises:
            BodyGone: the client has left, and the door has removed the file.
            BodyUnreadable: the file cannot be used for any other reason.
        """
        headers, body = request.headers, request.body
        if not self.has_sent(headers):
            return request
        if headers.get(BODY_HEADER):
            body = self._map_body(headers[BODY_HEADER])
        elif isinstance(body, Mapping):  # TorchServe's parameters
            body = body.get("body") or b""
        # Without its mark, so that nobody opens the body again.
        opened = {**headers, "content-type": headers.get(TYPE_HEADER, ""), KEY_HEADER: ""}
        return replace(request, body=body, headers=opened)

    def has_sent(self, headers: Mapping[str, str]) -> bool:
        """Returns True if a request has this run's key."""
        return hmac.compare_digest(headers.get(KEY_HEADER, "").encode(), self._key)

    def find_id(self, headers: Mapping[str, str]) -> str | None:
        """Returns the door's id of a request; None if the door has not sent the request."""
        return headers.get(ID_HEADER) if self.has_sent(headers) else None

    def _map_body(self, path: str) -> Body:
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
