"""Which candidate comes next: by Optuna's TPE, or all of a grid in random order.

Stateless: the answer follows from the measurements, so an interrupted search goes on as if it
had not been.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.choice import Summary, score
from offpath.profiling.experiments.tuning.space import Candidate, SearchSpace

SAMPLERS = ("tpe", "grid")
# Random ones before the model of what was seen is of use.
STARTUP_TRIALS = 6
# TPE proposes the best one again and again once it is sure.
MOST_PROPOSALS = 30
NAMES = ("batch_size", "max_batch_delay_ms", "workers", "threads")


def next_candidate(
    sampler: str,
    space: SearchSpace,
    summaries: Sequence[Summary],
    p95_ms: float,
    seed: int,
) -> Candidate | None:
    """A candidate that was not measured yet; None when there is none left.

    Raises:
        ExpectedError: optuna is not installed.
    """
    measured = {summary.candidate for summary in summaries}
    left = [candidate for candidate in space.candidates() if candidate not in measured]
    if not left:
        return None
    random.Random(seed).shuffle(left)
    if sampler == "tpe":
        return propose(space, summaries, p95_ms, seed, measured) or left[0]
    return left[0]


def propose(
    space: SearchSpace,
    summaries: Sequence[Summary],
    p95_ms: float,
    seed: int,
    measured: set[Candidate],
) -> Candidate | None:
    """TPE's first proposal that is new."""
    optuna = import_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(
            seed=seed + len(summaries),
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            # Proposals that wait for their value keep the next ones away.
            constant_liar=True,
        ),
    )
    # Places in the ascending choices: neighbours are alike.
    places = {
        name: optuna.distributions.IntDistribution(0, len(choices) - 1)
        for name, choices in zip(NAMES, space.choices())
    }
    for summary in summaries:
        params = place(space, summary.candidate)
        # The preset may lie outside of the space.
        if params is not None:
            study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=places, value=score(summary, p95_ms)
                )
            )
    for _ in range(MOST_PROPOSALS):
        params = study.ask(places).params
        candidate = Candidate(
            *(choices[params[name]] for name, choices in zip(NAMES, space.choices()))
        )
        if candidate not in measured:
            return candidate
    return None


def place(space: SearchSpace, candidate: Candidate) -> dict[str, int] | None:
    """A candidate's places in the choices; None when it is not of the space."""
    places = {}
    for name, choices in zip(NAMES, space.choices()):
        value = getattr(candidate, name)
        if value not in choices:
            return None
        places[name] = choices.index(value)
    return places


def import_optuna() -> Any:
    """Optuna, quiet."""
    try:
        import optuna
    except ImportError as error:
        raise ExpectedError(
            "optuna is not installed; get it with: pip install 'torchserve-offpath[bench]',"
            " or use --sampler grid"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
