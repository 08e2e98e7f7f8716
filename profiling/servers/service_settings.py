"""Settings that an adapter passes to its program: one JSON object in an environment variable.

The program of a server from PyPI stands in its adapter's module, below `if is_service():`. There it
runs in the server's own environment, which alone has what the program imports.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.profiling.servers.classifiers import Classify

VARIABLE = "OFFPATH_SERVICE"
# Printed by a program where no request tells that all its workers are ready.
READY = "offpath: all workers are ready"


def is_service() -> bool:
    return VARIABLE in os.environ


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of a program.

    Attributes:
        model: reference of the model under test.
        max_batch_delay_ms: longest wait of a batch's first request for others.
        threads: torch's intra-op threads in each worker.
        kind: what happens to a photograph, see `classifiers`.
        timeout_s: time after which a server gives a request up. It is the load's own, so that a
            slow model's queue is measured and not cut.
    """

    model: str
    port: int
    batch_size: int
    max_batch_delay_ms: int
    workers: int
    threads: int = 1
    kind: str = "pillow"
    timeout_s: int = 120

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ServiceSettings:
        return cls(**json.loads(os.environ[VARIABLE]))

    def load_classifier(self) -> Classify:
        """Loads the model; call it in the processes that run the model."""
        # Imported here: processes that only serve HTTP need no torch.
        from offpath.profiling.servers.classifiers import load_classifier

        return load_classifier(self.kind, self.model, self.threads, self.batch_size)
