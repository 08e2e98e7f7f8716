"""What an adapter tells its service: one JSON object in an environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.profiling.servers.services.classifiers import Classify

VARIABLE = "OFFPATH_SERVICE"
# A service prints this line where no request tells that all its workers are ready.
READY = "offpath: all workers are ready"


@dataclass(frozen=True)
class ServiceSettings:
    """How a service is set up.

    Attributes:
        model: the model under test's name.
        port: on loopback.
        batch_size: the largest batch.
        max_batch_delay_ms: how long the first request of a batch waits for others.
        workers: model processes.
        threads: torch's intra-op threads of each.
        kind: what happens to a picture, see `classifiers`.
        timeout_s: after which a server gives a request up; the load's own, so that a slow model's
            queue is measured and not cut.
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
        """The variable for the service's process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ServiceSettings:
        """Read back inside the service; KeyError outside one."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def load_classifier(self) -> Classify:
        """The model, as its processes call it."""
        # Imported here: the processes that only serve HTTP need no torch.
        from offpath.profiling.servers.services.classifiers import load_classifier

        return load_classifier(self.kind, self.model, self.threads, self.batch_size)
