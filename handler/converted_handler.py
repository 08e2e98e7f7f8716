"""Handlers that `offpath archive --from` converts: their postprocess behind our request path."""

from __future__ import annotations

from typing import Any

import torch

from offpath.handler.classifier import OffpathClassifier
from offpath.handler.custom_handler import Result


class ConvertedClassifier(OffpathClassifier):
    """Answers with what another handler's `postprocess` makes of the model's outputs.

    Attributes:
        theirs: a subclass of TorchServe's handlers, which the archive's own file defines.
    """

    theirs: Any

    def initialize(self, context: Any) -> None:
        """Gives their handler what it would have got from TorchServe's `initialize`."""
        super().initialize(context)
        self._theirs = self.theirs()
        for name in ("manifest", "model", "model_yaml_config", "topk"):
            setattr(self._theirs, name, getattr(self, name))
        # By text, as in index_to_name.json; None without that file.
        self._theirs.mapping = {str(index): one for index, one in self.mapping.items()} or None
        self._theirs.device = torch.device("cpu")  # where the outputs are

    def postprocess_item(self, result: Result) -> object:
        (reply,) = self._theirs.postprocess(result.outputs)
        return reply
