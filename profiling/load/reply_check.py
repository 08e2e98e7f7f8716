"""Checks a server's replies against the reference before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from offpath.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import (
    ExpectedReply,
    ModelUnderTest,
    classify_reference,
)

PHOTOGRAPHS_CHECKED = 4
# Bound of the difference between DCT-scaled and exact decoding.
MAX_PROBABILITY_DIFFERENCE = 0.03
TIMEOUT_S = 120.0


def make_checks(
    model: ModelUnderTest, photographs: Sequence[bytes]
) -> list[tuple[bytes, ExpectedReply]]:
    """Returns the photographs on which the reference leads most, and what it says.

    Seeded weights make near ties, where two correct decoders may differ.
    """
    answered = [(photo, classify_reference(model, photo)) for photo in photographs[:16]]
    answered.sort(key=lambda pair: -pair[1].lead)
    return answered[:PHOTOGRAPHS_CHECKED]


def check_replies(
    server: str, url: str, call: Call, checks: Sequence[tuple[bytes, ExpectedReply]]
) -> float:
    """Returns the largest difference of a probability from the reference.

    Args:
        checks: bodies as the load sends them, with what a right reply says.

    Raises:
        ExpectedError: another label, or a probability too far from the reference.
    """
    largest = 0.0
    # trust_env: no proxy before loopback. verify: a server under test has signed its certificate.
    with httpx.Client(trust_env=False, verify=False, timeout=TIMEOUT_S) as client:
        for body, expected in checks:
            try:
                reply = client.post(url, content=body, headers=call.all_headers)
            except httpx.TransportError as error:
                raise ExpectedError(
                    f"server {server!r} did not answer a good photograph: {error!r}"
                ) from error
            largest = max(largest, compare(server, read(server, call, reply), expected))
    return largest


def read(server: str, call: Call, reply: httpx.Response) -> dict[str, float]:
    if reply.status_code != 200:
        raise ExpectedError(
            f"server {server!r} answered {reply.status_code} to a good photograph:"
            f" {reply.text[:300]}"
        )
    try:
        labels = call.read_reply(reply.content)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ExpectedError(
            f"server {server!r} gave a reply that cannot be read ({error!r}):"
            f" {reply.text[:300]}"
        ) from error
    if not labels:
        raise ExpectedError(f"server {server!r} gave a reply without a label")
    return labels


def compare(server: str, reply: dict[str, float], expected: ExpectedReply) -> float:
    """Returns the difference of the top probability; `reply` maps labels to probabilities."""
    label, probability = max(reply.items(), key=lambda pair: pair[1])
    difference = abs(probability - expected.probability)
    if label != expected.label or difference > MAX_PROBABILITY_DIFFERENCE:
        raise ExpectedError(
            f"server {server!r} answered {label!r} with {probability:.4f}; the reference is"
            f" {expected.label!r} with {expected.probability:.4f} (at most"
            f" {MAX_PROBABILITY_DIFFERENCE} apart): its speed would not be comparable"
        )
    return difference
