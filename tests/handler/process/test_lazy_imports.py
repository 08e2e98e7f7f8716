from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# A worker's life: loads the archive through ts, answers, explains.
PROGRAM = """
import json, sys
from tests.handler.loaded_service import load_service, make_rows, predict

HEAVY = ("captum", "torch._dynamo", "openvino.torch", "onnxruntime", "opentelemetry")
def heavy():
    return [name for name in HEAVY if name in sys.modules]

service = load_service({mar!r})
rows = make_rows()
predict(service, rows)
before = heavy()

explained = make_rows()[:1]
explained[0]["headers"] = [{{"name": b"explain", "value": b"True"}}]
predict(service, explained)
handler = service._entry_point.__self__
from offpath.handler.model.normalise import Normaliser
config, runner = handler.config, handler.pipeline.runner
normalise = Normaliser(config, runner.device)
inputs = normalise(runner.image(0))
ours = handler.get_insights(inputs, None, 7)

import captum.attr, torch
theirs = captum.attr.IntegratedGradients(handler.model).attribute(inputs, target=7, n_steps=15)
print(json.dumps({{
    "before": before,
    "after": heavy(),
    "difference": float((torch.tensor(ours) - theirs).abs().max()),
    "largest": float(theirs.abs().max()),
}}))
"""


def test_captum_and_the_compiler_are_imported_by_the_first_explanation_alone(
    model_store: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(mar=str(model_store / "near-free.mar"))],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert seen["before"] == []
    assert "captum" in seen["after"]
    assert seen["difference"] == 0
    assert seen["largest"] > 0
