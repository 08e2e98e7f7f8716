"""`bench sweep`: servers against the number of clients, as published comparisons do it.

Each server is started once in each round and meets all steps in turn.
"""

from __future__ import annotations

from collections.abc import Callable

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Run
from offpath.profiling.experiments.server_experiment import Choices, open_experiment

NAME = "sweep"


def run_sweep(choices: Choices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs the sweep; see `ServerExperiment` for arguments and errors."""
    with open_experiment(NAME, choices, observer, save) as experiment:
        for adapter in experiment.find_adapters():
            experiment.add_server(adapter)
        return experiment.take_rounds()
