"""AOTInductor: machine code that torch.compile made when the archive was built."""

from __future__ import annotations

from pathlib import Path

import torch

from offpath.handler.model.engines import BackendUnavailable
from offpath.handler.model.engines.artefacts import find_artefact


class CompiledBackend:
    """Runs `model.<precision>.pt2`; made for the processor and device it was built on."""

    name = "compiled"
    is_capturable = True

    def __init__(
        self, folder: Path | None, precision: str, device: torch.device
    ) -> None:
        self.precision = precision
        path = find_artefact(folder, self.name, precision)
        # What torch._inductor.aoti_load_package() wraps; that module would import the compiler,
        # seconds of it, into every worker.
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(
                str(path), "model", False, 1, device.index or -1
            )
        except (AttributeError, RuntimeError) as error:
            raise BackendUnavailable(
                f"{path.name} cannot be loaded: {error}"
            ) from error

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """See `Backend`."""
        logits: torch.Tensor = self._loader.boxed_run([pictures])[0]
        return logits
