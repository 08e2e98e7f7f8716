"""What is searched: a candidate, the choices that make it up, and a preset as one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from offpath.archive.model_config import SERVER_SETTINGS
from offpath.handler.errors import ExpectedError
from offpath.profiling.servers.registering import Setting, read_setting

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_BATCH_DELAYS_MS = (1, 2, 5, 10, 20)
# handler/config.py's own limit.
MOST_THREADS = 256
Candidate = Setting
read_candidate = read_setting


@dataclass(frozen=True)
class SearchSpace:
    """The choices for each setting, ascending."""

    batch_size: tuple[int, ...]
    max_batch_delay_ms: tuple[int, ...]
    workers: tuple[int, ...]
    threads: tuple[int, ...]

    def __post_init__(self) -> None:
        limits = {
            "batch_size": SERVER_SETTINGS["batchSize"],
            "max_batch_delay_ms": SERVER_SETTINGS["maxBatchDelay"],
            "workers": SERVER_SETTINGS["maxWorkers"],
            "threads": (0, MOST_THREADS),
        }
        for name, choices in asdict(self).items():
            low, high = limits[name]
            if not choices or not all(low <= choice <= high for choice in choices):
                raise ExpectedError(
                    f"choices of {name} are {list(choices)}: expected whole numbers"
                    f" from {max(low, 1)} to {high}, at least one"
                )

    @property
    def size(self) -> int:
        """Number of candidates."""
        return sum(1 for _ in self.candidates())

    def candidates(self) -> Iterator[Candidate]:
        """All of them."""
        return (Candidate(*values) for values in itertools.product(*self.choices()))

    def choices(self) -> tuple[tuple[int, ...], ...]:
        """The choices in a candidate's order."""
        return (self.batch_size, self.max_batch_delay_ms, self.workers, self.threads)


def make_space(
    cores: int,
    clients: int,
    chosen: Mapping[str, Sequence[int]],
    has_our_handler: bool = True,
) -> SearchSpace:
    """The default space of a machine, with the user's own choices in it.

    Args:
        clients: a batch above the number of closed-loop clients never fills.
        chosen: setting -> choices, for those that the user gave.
        has_our_handler: threads are a setting of our handler only.
    """
    if not has_our_handler and chosen.get("threads"):
        raise ExpectedError(
            "--threads: the archive has another handler than ours, which sets its threads itself"
        )
    defaults: dict[str, Sequence[int]] = {
        "batch_size": [size for size in BATCH_SIZES if size <= clients],
        "max_batch_delay_ms": MAX_BATCH_DELAYS_MS,
        "workers": [n for n in (1, cores // 2, cores, cores * 3 // 2) if n],
        "threads": list_threads(cores) if has_our_handler else [0],
    }
    merged = {name: chosen.get(name) or choices for name, choices in defaults.items()}
    return SearchSpace(**{name: tuple(sorted(set(v))) for name, v in merged.items()})


def list_threads(cores: int) -> list[int]:
    """Powers of two up to the number of cores."""
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
