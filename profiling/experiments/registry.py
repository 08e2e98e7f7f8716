"""Every kind of saved run by its experiment's name, and the module that shows it.

A further experiment is a module here and a line in `EXPERIMENTS`.
"""

from __future__ import annotations

from importlib import import_module

from offpath.errors import WrongOption
from offpath.profiling.core.run import Run
from offpath.profiling.report.document import Document

# Experiment -> the module whose `document_of(run, baseline)` shows it; imported when it is needed.
EXPERIMENTS: dict[str, str] = {
    "compare": "offpath.profiling.experiments.compare_report",
    # Saved by earlier versions, where it was a command.
    "sweep": "offpath.profiling.experiments.compare_report",
    **dict.fromkeys(
        ("profile-stages", "profile-cprofile", "profile-lines", "profile-flame"),
        "offpath.profiling.profilers.profile_report",
    ),
    "profile-server": "offpath.profiling.experiments.server_account",
    "tune": "offpath.profiling.experiments.tune_report",
}


def document_of(run: Run, baseline: str | None) -> Document:
    """Returns everything that is shown of a run; raises WrongOption for an unknown experiment.

    `baseline` is the variant that the others are divided by; None for the experiment's own.
    """
    if run.experiment not in EXPERIMENTS:
        raise WrongOption(
            f"no experiment {run.experiment!r} is known here; there are:"
            f" {', '.join(EXPERIMENTS)}"
        )
    module = import_module(EXPERIMENTS[run.experiment])
    document: Document = module.document_of(run, baseline)
    return document
