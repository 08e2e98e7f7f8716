"""Searches for the request that costs most: `python -m tests.fuzz.worst_cost --minutes 10`.

Begins with costly_requests.py, changes bytes at random and keeps what takes longer. Each try runs
in a process of its own with a bound on its memory. Prints a row per format, as in the table of
docs/research/2026-11-23-faults-and-attacks.md.
"""

from __future__ import annotations

import os
import pickle
import random
import resource
import time
from dataclasses import dataclass

import click

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decode import decode_image
from offpath.handler.input_maker import silence_decoders
from offpath.handler.request.body_from_front_door import parse_body
from offpath.handler.request.npy import NPY_MAGIC, read_npy
from offpath.handler.request.payload import read_payload
from tests.fuzz.costly_requests import (
    COSTLY,
    COSTLY_ENVELOPES,
    MOST_REQUEST_BYTES,
    WAYS_IN,
    Request,
)

CONFIG = HandlerConfig(exif_orientation=True)
MOST_MEMORY_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Cost:
    """The cost of one request.

    Attributes:
        cpu_s: of all threads.
        memory_mb: more than before it.
        answer: the error's type, or "200"; a bug is none of both.
    """

    cpu_s: float
    memory_mb: int
    answer: str


def measure(request: Request) -> Cost:
    """Reads and decodes a request as a worker does, in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, pickle.dumps(_take(request)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    if not answer:
        return Cost(0.0, 0, "the process ended")
    cost: Cost = pickle.loads(answer)
    return cost


def _take(request: Request) -> Cost:
    body = bytearray(request.body)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin_s = time.process_time()
    try:
        _decode(body, request.content_type)
        answer = "200"
    except ItemError as error:
        answer = error.type
    except Exception as error:
        answer = f"BUG {error!r}"
    cpu_s = time.process_time() - begin_s
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Cost(cpu_s, (after - before) // 1024, answer)


def _decode(body: bytearray, content_type: str) -> None:
    payload = read_payload(parse_body(body, content_type), CONFIG.max_payload_bytes)
    if payload[:6] == NPY_MAGIC:
        read_npy(payload, CONFIG.input_geometry.shape)
    else:
        decode_image(payload, CONFIG.decode_options)


def mutate(body: bytes, chance: random.Random) -> bytes:
    """Changes some bytes, most of them near the beginning, where a file says what it is."""
    changed = bytearray(body)
    for _ in range(chance.randint(1, 8)):
        end = len(changed) if chance.random() < 0.3 else min(len(changed), 1024)
        at = chance.randrange(end)
        if chance.random() < 0.8:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        else:
            length = chance.randint(1, 4096)
            changed[at:at] = changed[at : at + length]
    return bytes(changed[: CONFIG.max_payload_bytes])


def report(format: str, name: str, size: int, cost: Cost) -> None:
    """Formats one row of the table."""
    click.echo(
        f"| {format} | {name} | {size:,} | {cost.cpu_s:.2f} | {cost.memory_mb} "
        f"| {cost.answer} |"
    )


@click.command()
@click.option("--minutes", default=0.0, help="How long to search beyond what is known.")
@click.option("--seed", default=0)
@click.option("--only", help="One format.")
def main(minutes: float, seed: int, only: str | None) -> None:
    """Measures the known worst requests, then searches for worse ones."""
    silence_decoders()
    chance = random.Random(seed)
    worst: dict[str, tuple[str, bytes, Cost]] = {}
    for format, makers in COSTLY.items():
        for name, make in makers.items():
            if only and format != only:
                continue
            body = make()
            cost = measure(Request(body))
            report(format, name, len(body), cost)
            if format not in worst or cost.cpu_s > worst[format][2].cpu_s:
                worst[format] = (name, body, cost)
    for name, make_request in COSTLY_ENVELOPES.items():
        request = make_request()
        report("envelope", name, len(request.body), measure(request))
    end_s, tries = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end_s:
        format = chance.choice(sorted(worst))
        name, body, cost = worst[format]
        changed = mutate(body, chance)
        request = WAYS_IN[chance.choice(sorted(WAYS_IN))](changed)
        if len(request.body) > MOST_REQUEST_BYTES:
            request = Request(changed)
        tried, tries = measure(request), tries + 1
        if tried.answer.startswith("BUG") or tried.answer == "the process ended":
            report(format, "found", len(changed), tried)
        if tried.cpu_s > cost.cpu_s:
            worst[format] = (
                name.removesuffix(", changed") + ", changed",
                changed,
                tried,
            )
    click.echo(f"\nworst after {tries} tries")
    for format, (name, body, cost) in worst.items():
        report(format, name, len(body), cost)


if __name__ == "__main__":
    main()
