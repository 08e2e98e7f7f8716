"""What a process's memory is made of: the kernel's /proc/PID/smaps, by kind of page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# A process's own heap, stacks and libraries' unnamed tables; libraries and programs; other files,
# which are a model's weights.
ANONYMOUS, LIBRARIES, FILES = "anonymous", "libraries", "files"
KINDS = (ANONYMOUS, LIBRARIES, FILES)

MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ (?P<mode>\S+) \S+ \S+ \S+ *(?P<name>.*)")
LIBRARY = re.compile(r"\.so(\.|$)|/bin/")


@dataclass(frozen=True)
class Pages:
    """Memory of one kind.

    Attributes:
        pss_bytes: proportional; a page that n processes share counts 1/n.
        unique_bytes: in this process alone: what its end would free.
    """

    pss_bytes: int
    unique_bytes: int


def sample_pages(pids: Iterable[int]) -> dict[str, Pages]:
    """The memory of some processes together, by kind; an ended one counts nothing."""
    pss: Counter[str] = Counter()
    unique: Counter[str] = Counter()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:  # ended, or another user's
            continue
        add_pages(text, pss, unique)
    return {kind: Pages(pss[kind], unique[kind]) for kind in KINDS}


def add_pages(text: str, pss: Counter[str], unique: Counter[str]) -> None:
    """Adds the mappings of one smaps file to the sums."""
    kind = ANONYMOUS
    for line in text.splitlines():
        mapping = MAPPING.match(line)
        if mapping is not None:
            kind = kind_of(mapping["name"])
            continue
        field, _, value = line.partition(":")
        if field == "Pss":
            pss[kind] += 1024 * int(value.split()[0])
        elif field in ("Private_Clean", "Private_Dirty"):
            unique[kind] += 1024 * int(value.split()[0])


def kind_of(name: str) -> str:
    """The kind of a mapping by its file's name; a library's own tables go with the library."""
    if not name.startswith("/"):
        return ANONYMOUS
    return LIBRARIES if LIBRARY.search(name) else FILES
