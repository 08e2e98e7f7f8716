from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.handler.process import lazy_imports
from offpath.handler.process.lazy_imports import unused_imports_deferred

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


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that has a stand-in and whose import can be seen."""
    name = "offpath_heavy_module"
    (tmp_path / f"{name}.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lazy_imports, "TAKEN", {name: {"given": 1}})
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def is_real(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not isinstance(module, lazy_imports.StandIn)


def test_stand_in_imports_the_module_on_first_access(heavy: str) -> None:
    with unused_imports_deferred():
        stand_in = __import__(heavy)
        assert stand_in.given == 1
        assert not is_real(heavy)
    assert heavy not in sys.modules
    assert stand_in.answer == 42
    assert is_real(heavy)
    assert __import__(heavy).answer == 42


def test_module_that_was_imported_before_stays(heavy: str) -> None:
    real = __import__(heavy)
    with unused_imports_deferred():
        assert __import__(heavy) is real
    assert sys.modules[heavy] is real


def test_missing_module_stays_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_imports, "TAKEN", {"offpath_no_such_module": {}})
    with unused_imports_deferred(), pytest.raises(ModuleNotFoundError):
        __import__("offpath_no_such_module")
