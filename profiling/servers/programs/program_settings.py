"""The settings that an adapter passes to its server's program, in an environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.profiling.servers.classifiers import Classify

# Holds the settings as JSON.
VARIABLE = "OFFPATH_SERVICE"


@dataclass(frozen=True)
class ProgramSettings:
    """The settings of a server's program.

    Attributes:
        model: reference of the model under test.
        max_batch_delay_ms: longest wait of a batch's first request for others.
        threads: torch's intra-op threads in each worker.
        kind: what happens to a photograph, see `classifiers`.
    """

    model: str
    port: int
    batch_size: int
    max_batch_delay_ms: int
    workers: int
    threads: int
    kind: str

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ProgramSettings:
        return cls(**json.loads(os.environ[VARIABLE]))

    def load_classifier(self) -> Classify:
        """Loads the model; call it in the processes that run the model."""
        # Imported here: processes that only serve HTTP need no torch.
        from offpath.profiling.servers.classifiers import load_classifier

        return load_classifier(self.kind, self.model, self.threads, self.batch_size)
