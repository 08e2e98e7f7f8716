"""Our archive outside TorchServe: what `offpath export` writes, under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offpath.deploy.triton.export import TritonChoices, export_triton
from offpath.profiling.load.call import JPEG, Call
from offpath.profiling.servers.archives import build_offpath, offpath_config
from offpath.profiling.servers.triton import MODEL, RAW_BODY, Triton, read_outputs


class OffpathExportTriton(Triton):
    """`offpath export triton` of the archive that `offpath` serves."""

    name = "offpath-export-triton"

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return super().settings | {"archive": offpath_config(self.model, self.workers)}

    def make_call(self) -> Call:
        """The photograph's bytes and nothing else."""
        return Call(JPEG, RAW_BODY, read_reply=read_outputs)

    def write_models(self, folder: Path) -> None:
        """The exported repository instead of one of our own making."""
        store = folder / "store"
        store.mkdir()
        config = offpath_config(self.model, self.workers)
        archive = build_offpath(
            self.model, {**config, "batchSize": self.batch_size}, store
        )
        export_triton(TritonChoices(archive, folder / "models", name=MODEL))
