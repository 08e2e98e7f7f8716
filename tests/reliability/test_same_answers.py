"""The same archive under TorchServe, Granian, Triton and Ray Serve: equal answers and refusals.

    pytest -m reliability -s tests/reliability/test_same_answers.py

Servers that are not set up are skipped (`offpath bench setup offpath-export-triton offpath-ray`).
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import make_servers
from tests.support.images import npy, rejected
from tests.support.photographs import PHOTOGRAPHS, encode

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]

OTHERS = (
    "offpath-granian",
    "offpath-export-triton",
    "offpath-ray",
)
FORMATS = {"JPEG": {"quality": 90}, "PNG": {}, "WEBP": {"quality": 90}, "thin": {}}
MOST_DIFFERENCE = 1e-4
MOST_BAD_BYTES = 1_000_000


def make_images() -> dict[str, bytes]:
    """Encodes each photograph in each format, and as a thin client's pixels."""
    images = {}
    for photograph in PHOTOGRAPHS:
        for kind, options in FORMATS.items():
            if kind == "thin":
                small = photograph.rgb.resize((224, 224), Image.Resampling.BILINEAR)
                body = npy(np.asarray(small))
            else:
                body = encode(photograph.rgb, kind, **options)
            images[f"{photograph.name} {kind}"] = body
    return images


def ask(server, url: str, body: bytes) -> tuple[int, dict]:
    """Returns status and reply in TorchServe's form; Triton's error message contains it."""
    headers = {"Content-Type": "application/octet-stream", **server.call.headers}
    reply = httpx.post(url, content=body, headers=headers, timeout=60)
    if reply.status_code == 200:
        return 200, server.call.read_reply(reply.content)
    content = reply.json()
    error = json.loads(content["error"]) if "error" in content else content
    return error["code"], error


def test_labels_scores_and_refusals_are_the_same(tmp_path: Path) -> None:
    model = load_model("efficientnet-lite0")
    found = make_servers(["offpath", *OTHERS], model, cores=2)
    servers = [server for server in found if server.why_not() is None]
    if len(servers) == 1:
        pytest.skip("; ".join(str(s.why_not()) for s in found[1:]))
    images = make_images()
    bad = {name: body for name, (body, *_) in rejected().items() if len(body) < MOST_BAD_BYTES}
    seen: dict[str, dict[str, tuple[int, dict]]] = {}
    for server in servers:
        with ExitStack() as stack:
            server.prepare(tmp_path / server.name)
            url = stack.enter_context(server.running()).predict_url
            asked = {**images, **bad}
            seen[server.name] = {n: ask(server, url, b) for n, b in asked.items()}
    mine = seen.pop("offpath")
    assert all(mine[name][0] == 200 for name in images)
    for other, theirs in seen.items():
        worst = 0.0
        for name in images:
            status, answer = theirs[name]
            assert status == 200, (other, name, answer)
            assert next(iter(answer)) == next(iter(mine[name][1])), (other, name)
            shared = answer.keys() & mine[name][1].keys()
            differences = [abs(answer[k] - mine[name][1][k]) for k in shared]
            worst = max(worst, *differences)
        refused = {n: (theirs[n][0], theirs[n][1]["type"]) for n in bad}
        assert refused == {n: (mine[n][0], mine[n][1]["type"]) for n in bad}
        print(
            f"\n{other}: {len(images)} images, the same best class; probabilities differ by"
            f" {worst:.1e} at most; {len(bad)} bad items, each the same code and type"
        )
        assert worst < MOST_DIFFERENCE
