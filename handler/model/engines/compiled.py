"""AOTInductor: machine code that torch.compile made when the archive was built."""

from __future__ import annotations

from pathlib import Path

import torch

from offpath.handler.model.engines.engine import EngineUnavailable, find_artefact


class CompiledEngine:
    """Runs `model.<precision>.pt2`, on the kind of processor and device that built the file.

    Raises:
        EngineUnavailable: there is no such file, or it does not load here.
    """

    name = "compiled"
    is_capturable = True

    def __init__(self, folder: Path | None, precision: str, device: torch.device) -> None:
        self.precision = precision
        path = find_artefact(folder, self.name, precision)
        # torch._inductor.aoti_load_package() wraps this loader, but its module would import the
        # compiler into every worker, which takes seconds.
        index = -1 if device.index is None else device.index
        try:
            # Single-threaded: a worker runs one batch at a time, and a CUDA graph cannot hold the
            # loader's locks (pytorch issue 148601).
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, index)
        except (AttributeError, RuntimeError) as error:
            raise EngineUnavailable(f"{path.name} cannot be loaded: {error}") from error

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._loader.boxed_run([images])[0]
        return logits
