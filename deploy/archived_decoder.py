"""The decoding half of an unpacked .mar, for processes without the model.

This file is copied into exports with decoders of their own, beside archived_handler.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archived_handler import (  # type: ignore[import-not-found]
    Answer,
    MakeSeries,
    Picture,
    Request,
    load_entry,
    make_context,
    make_row,
)


@dataclass
class OneRequest:
    """What the records of the log need to know of a request."""

    model_name: str
    request: Request

    def get_request_id(self, idx: int) -> str | None:
        """Its id."""
        request_id: str = self.request.request_id
        return request_id

    def get_all_request_header(self, idx: int) -> Mapping[str, str]:
        """As the client sent them."""
        headers: Mapping[str, str] = self.request.headers
        return headers


class ArchivedDecoder:
    """Decodes for an archive's handler; called from several threads.

    Args:
        folder: where the archive's content lies.
        make_series: where its metrics go; None for nowhere.

    Raises:
        OSError: the folder holds no archive.
    """

    def __init__(self, folder: Path, make_series: MakeSeries | None = None) -> None:
        context = make_context(folder, make_series=make_series)
        model = context.manifest["model"]
        load_entry(folder / model["handler"])
        # The archive's own copy.
        from offpath.handler.config import HandlerConfig
        from offpath.handler.image.decode_tier import DecodeTier

        config = HandlerConfig.from_mapping(context.model_yaml_config.get("handler"))
        self._model, self._says_timing = context.model_name, config.server_timing
        version = str(model.get("modelVersion", ""))
        self._tier = DecodeTier(config, self._model, version, context.metrics)

    def decode(self, request: Request) -> Picture | Answer:
        """The picture for the model, or the refusal."""
        from offpath.handler.image.decoded import Decoded
        from offpath.handler.model.explanations import is_explanation
        from offpath.handler.request.body_from_front_door import fields_of
        from offpath.handler.response import JSON_CONTENT_TYPE
        from offpath.handler.stages import format_server_timing

        row = make_row(request)
        made, timings = self._tier.decode(row, OneRequest(self._model, request))
        if isinstance(made, Decoded):
            target = None
            if is_explanation(request.headers):
                target = read_text(fields_of(row).get("target"))
            stage_s = {stage.value: spent for stage, spent in made.stage_s.items()}
            return Picture(
                made.pixels, made.payload_bytes, made.payload_hash, stage_s, target
            )
        headers = {"content-type": JSON_CONTENT_TYPE}
        if self._says_timing:
            headers["Server-Timing"] = format_server_timing(timings)
        return Answer(made.status, headers, made.body)

    def close(self) -> None:
        """Writes the last metrics; the prediction log ships what it can in a few seconds."""
        self._tier.close()


def read_text(value: object) -> str | None:
    """A form's field, which may be bytes of the body."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("ascii", "replace")
    return None if value is None else str(value)
