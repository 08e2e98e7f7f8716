"""A built archive needs nothing of this repository: its own folder is enough."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

PROGRAM = """
import json, os, sys
folder = os.getcwd()
import offpath.handler as handler
import ts
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.model_loader import ModelLoaderFactory

metrics = MetricsCacheYamlImpl(os.path.join(ts.__path__[0], "configs", "metrics.yaml"))
metrics.initialize_cache()
service = ModelLoaderFactory.get_model_loader().load(
    "model", folder, "classifier_entry.py", None, 2, None, True, metrics)
service.set_cl_socket(None)
body = open(sys.argv[1], "rb").read()
parameter = {"name": "body", "contentType": "image/jpeg", "value": bytearray(body)}
reply = service.predict([{"requestId": b"one", "headers": [], "parameters": [parameter]}])
ours = sorted(m.__file__ for n, m in sys.modules.items()
              if n.split(".")[0] in ("handler", "archive", "offpath", "profiling"))
print(json.dumps([handler.__file__, ours, bytes(reply).decode("latin-1")]))
"""


def test_an_unzipped_archive_loads_with_only_its_folder_on_the_path(
    model_store: Path, tmp_path: Path
) -> None:
    from tests.support.pictures import jpeg

    folder = (tmp_path / "model").resolve()
    with zipfile.ZipFile(model_store / "classifier.mar") as file:
        file.extractall(folder)
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(jpeg())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(photo)],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded_from, ours, reply = json.loads(done.stdout.strip().splitlines()[-1])
    assert loaded_from == str(folder / "offpath" / "handler" / "__init__.py")
    assert all(path.startswith(str(folder)) for path in ours)
    assert "espresso" in reply
