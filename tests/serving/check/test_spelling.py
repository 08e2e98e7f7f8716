"""The keys that are accepted are those of TorchServe's Java."""

from __future__ import annotations

import zipfile

import pytest

from offpath.serving.check.spelling import MODEL_SETTINGS, PROPERTIES, SETTINGS
from offpath.serving.torchserve.launch import find_ts_home

# Read by ts/model_server.py, and by offpath's and other handlers.
ELSEWHERE = {"vmargs", "plugins_path", "handler"}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param("util/ConfigManager", PROPERTIES, id="config.properties"),
        pytest.param("archive/model/ModelConfig", SETTINGS, id="model-config.yaml"),
        pytest.param("wlm/Model", MODEL_SETTINGS, id="models"),
    ],
)
def test_java_knows_each_key(name: str, keys: frozenset[str]) -> None:
    with zipfile.ZipFile(find_ts_home() / "ts" / "frontend" / "model-server.jar") as jar:
        content = jar.read(f"org/pytorch/serve/{name}.class")
    # As in the class file: a tag, a length, the text.
    assert [
        key
        for key in keys
        if b"\x01" + len(key).to_bytes(2, "big") + key.encode() not in content
        and key not in ELSEWHERE
    ] == []
