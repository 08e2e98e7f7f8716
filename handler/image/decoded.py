"""A picture that another process has decoded, and what the log wants to know of its payload.

Where pictures are decoded on other hosts than the model's (decode_tier.py), this is what comes in
the place of a payload: nobody but our own code can make one, a client's body is bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offpath.handler.image.decode import Pixels
from offpath.handler.stages import BatchTimings, Stage


@dataclass(frozen=True, slots=True)
class Decoded:
    """The model's input and its story.

    Attributes:
        pixels: uint8 [size, size, channels].
        payload_bytes, payload_hash: of the file it was made from.
        stage_s: seconds that it took there.
    """

    pixels: Pixels
    payload_bytes: int
    payload_hash: str | None
    stage_s: Mapping[Stage, float]

    def add_to(self, timings: BatchTimings) -> BatchTimings:
        """Its batch's account with its own earlier stages in it."""
        seconds = dict(timings.seconds)
        for stage, value in self.stage_s.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
        return BatchTimings(seconds, timings.total_s + sum(self.stage_s.values()))
