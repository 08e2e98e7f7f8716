"""What a search may try, and which setting comes next: random at first, then by Optuna's TPE.

Stateless: the next setting follows from the measurements, so an interrupted search goes on as if
it had not been.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from offpath.archive.model_config import SERVER_SETTINGS
from offpath.handler.errors import ExpectedError, MissingPackage
from offpath.profiling.servers.registering import Setting

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_BATCH_DELAYS_MS = (1, 2, 5, 10, 20)
# Of a setting's field: the limits of TorchServe, and of handler/config.py.
LIMITS = {
    "batch_size": SERVER_SETTINGS["batchSize"],
    "max_batch_delay_ms": SERVER_SETTINGS["maxBatchDelay"],
    "workers": SERVER_SETTINGS["maxWorkers"],
    "threads": (0, 256),
}
# Random ones before the model of what was seen is of use.
STARTUP_TRIALS = 6
# TPE proposes the best one again and again once it is sure.
MOST_PROPOSALS = 30


@dataclass(frozen=True)
class SearchSpace:
    """The choices for each field of a setting, ascending."""

    batch_size: tuple[int, ...]
    max_batch_delay_ms: tuple[int, ...]
    workers: tuple[int, ...]
    threads: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, choices in self.choices.items():
            low, high = LIMITS[name]
            if not choices or not all(low <= choice <= high for choice in choices):
                raise ExpectedError(
                    f"choices of {name} are {list(choices)}: expected whole numbers"
                    f" from {max(low, 1)} to {high}, at least one"
                )

    @property
    def choices(self) -> dict[str, tuple[int, ...]]:
        """By field, in a setting's order."""
        return {name: getattr(self, name) for name in LIMITS}

    @property
    def size(self) -> int:
        """Number of settings."""
        return sum(1 for _ in self.settings())

    def settings(self) -> Iterator[Setting]:
        """All of them."""
        return (Setting(*one) for one in itertools.product(*self.choices.values()))


def make_space(
    cores: int,
    clients: int,
    chosen: Mapping[str, Sequence[int]],
    has_our_handler: bool = True,
) -> SearchSpace:
    """The default space of a machine, with the user's own choices in it.

    Args:
        clients: a batch above the number of closed-loop clients never fills.
        chosen: field -> choices, for those that the user gave.
        has_our_handler: threads are a setting of our handler only.
    """
    if not has_our_handler and chosen.get("threads"):
        raise ExpectedError(
            "--threads: the archive has another handler than ours, which sets its threads itself"
        )
    powers = [1 << power for power in range(cores.bit_length())]
    defaults: dict[str, Sequence[int]] = {
        "batch_size": [size for size in BATCH_SIZES if size <= clients],
        "max_batch_delay_ms": MAX_BATCH_DELAYS_MS,
        "workers": [n for n in (1, cores // 2, cores, cores * 3 // 2) if n],
        "threads": powers if has_our_handler else [0],
    }
    merged = {name: chosen.get(name) or choices for name, choices in defaults.items()}
    return SearchSpace(**{name: tuple(sorted(set(v))) for name, v in merged.items()})


def next_setting(
    space: SearchSpace, scores: Mapping[Setting, float], seed: int
) -> Setting | None:
    """TPE's first proposal that was not measured yet; None when there is nothing left.

    Args:
        scores: of what was measured, in its order; higher is better.

    Raises:
        MissingPackage: optuna is not installed.
    """
    left = [setting for setting in space.settings() if setting not in scores]
    if not left:
        return None
    optuna = import_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(
            seed=seed + len(scores),
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            # Proposals that wait for their value keep the next ones away.
            constant_liar=True,
        ),
    )
    # Places in the ascending choices: neighbours are alike.
    places = {
        name: optuna.distributions.IntDistribution(0, len(choices) - 1)
        for name, choices in space.choices.items()
    }
    for setting, score in scores.items():
        # The preset may lie outside of the space.
        if all(value in space.choices[name] for name, value in asdict(setting).items()):
            params = {
                name: space.choices[name].index(value)
                for name, value in asdict(setting).items()
            }
            trial = optuna.trial.create_trial(
                params=params, distributions=places, value=score
            )
            study.add_trial(trial)
    for _ in range(MOST_PROPOSALS):
        params = study.ask(places).params
        setting = Setting(**{n: of[params[n]] for n, of in space.choices.items()})
        if setting not in scores:
            return setting
    return random.Random(seed).choice(left)


def import_optuna() -> Any:
    """Optuna, quiet."""
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage("optuna", "bench") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
