"""Decodes images for the handler of an unpacked .mar, in processes without the model.

Exports with separate decoders get a copy of this file, beside archived_handler.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archived_handler import (  # type: ignore[import-not-found]
    Answer,
    DecodedImage,
    MakeMetric,
    Request,
    add_arrival,
    load_entry,
    make_context,
    make_row,
)


@dataclass
class DecoderContext:
    """The parts of TorchServe's context that the records of the log need, for one request."""

    model_name: str
    request: Request

    def get_request_id(self, idx: int) -> str | None:
        request_id: str = self.request.request_id
        return request_id

    def get_all_request_header(self, idx: int) -> Mapping[str, str]:
        headers: Mapping[str, str] = add_arrival(self.request)
        return headers


class ArchivedDecoder:
    """Decodes for an archive's handler; several threads may call it.

    Args:
        folder: the unpacked archive.
        make_metric: publishes the decoder's metrics; None drops them.

    Raises:
        OSError: the folder holds no archive.
    """

    def __init__(self, folder: Path, make_metric: MakeMetric | None = None) -> None:
        context = make_context(folder, make_metric=make_metric)
        model = context.manifest["model"]
        load_entry(folder / model["handler"])
        # The archive's own copy, which can be imported now.
        from offpath.handler.config import HandlerConfig
        from offpath.handler.decode_tier import DecodeTier

        config = HandlerConfig.from_mapping(context.model_yaml_config.get("handler"))
        self._model, self._adds_timing = context.model_name, config.server_timing
        version = str(model.get("modelVersion", ""))
        self._tier = DecodeTier(config, self._model, version, context.metrics)

    def decode(self, request: Request) -> DecodedImage | Answer:
        """Returns the image for the model, or the answer that refuses it."""
        from offpath.handler.model.explanations import is_explanation
        from offpath.handler.pipeline import PreparedInput
        from offpath.handler.request.body_from_front_door import read_fields
        from offpath.handler.response import JSON_CONTENT_TYPE
        from offpath.handler.stages import format_server_timing

        row = make_row(request)
        made, timings = self._tier.decode(row, DecoderContext(self._model, request))
        if isinstance(made, PreparedInput):
            target = None
            if is_explanation(request.headers):
                target = read_text(read_fields(row).get("target"))
            stage_s = {stage.value: spent for stage, spent in made.stage_s.items()}
            return DecodedImage(made.pixels, made.payload_bytes, made.payload_hash, stage_s, target)
        headers = {"content-type": JSON_CONTENT_TYPE}
        if self._adds_timing:
            headers["Server-Timing"] = format_server_timing(timings)
        return Answer(made.status, headers, made.body)

    def count_requests(self, status: int, seconds: float) -> None:
        """Counts the time of an answered request."""
        if hasattr(self._tier, "count_requests"):  # older archives have none
            self._tier.count_requests(status, seconds)

    def close(self) -> None:
        """Writes the last metrics; the prediction log uploads what it can in a few seconds."""
        self._tier.close()


def read_text(value: object) -> str | None:
    """Converts a form's field to text; the field may be bytes of the body."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("ascii", "replace")
    return None if value is None else str(value)
