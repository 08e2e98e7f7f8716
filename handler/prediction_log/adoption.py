"""Segments of dead processes, taken over by whoever gets the lock of their folder."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from offpath.handler.prediction_log.owner import (
    OwnerFolder,
    claim_owner_folder,
    list_owner_folders,
    remove_stale,
)
from offpath.handler.prediction_log.segment import SealedSegment, list_segments


class AdoptedFolders:
    """The folders of dead processes that this process has locked."""

    def __init__(self, sink_folder: Path) -> None:
        self.sink_folder = sink_folder
        self._folders: list[OwnerFolder] = []

    @property
    def paths(self) -> set[Path]:
        return {folder.path for folder in self._folders}

    def adopt(self) -> list[SealedSegment]:
        """Locks what can be locked; returns the segments in there. The living stay untouched."""
        remove_stale(self.sink_folder)
        found: list[SealedSegment] = []
        for path in list_owner_folders(self.sink_folder):
            folder = claim_owner_folder(path)
            if folder is None:
                continue
            segments = list_segments(folder.path)
            if segments:
                self._folders.append(folder)
                found.extend(segments)
            else:
                folder.release()
        return found

    def release_emptied(self, in_use: Container[Path]) -> None:
        """Removes the folders that hold no segment any more."""
        for folder in list(self._folders):
            if folder.path not in in_use:
                self._folders.remove(folder)
                folder.release()

    def release(self) -> None:
        """Gives up all locks; what is left may be adopted by others."""
        self.release_emptied(())

    def abandon(self) -> None:
        """Closes the descriptors, for a forked child: the locks are its parent's."""
        for folder in self._folders:
            os.close(folder.lock_fd)
        self._folders.clear()


def count_bytes(sink_folder: Path, apart_from: Container[Path] = ()) -> int:
    """Bytes of all segments of a sink, those in the folders `apart_from` left out."""
    total = 0
    for path in list_owner_folders(sink_folder):
        if path in apart_from:
            continue
        try:
            total += sum(segment.size_bytes for segment in list_segments(path))
        except FileNotFoundError:
            # Its owner has just finished and removed it.
            continue
    return total
