"""Stands in for the processes in which Ray or Triton runs exports, which are asked over HTTP.

It imports torch once. For each line of standard input, such as ["ray", "FOLDER"], a fork serves the
export in the folder, and prints its port and process id.

`GET /health` asks the adapter's own check, and `GET /ids` what ids the handler got. Ray's requests
and responses are passed on as they are. For Triton a body is a BYTES tensor, and the reply is the
tensor REPLY, or the error with the status that Triton gives to its code.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import sys
import threading
import types
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch  # noqa: F401

Answer = tuple[int, dict[str, str], bytes]
STATUS_OF_CODE = {"INVALID_ARG": 400, "UNAVAILABLE": 503, "INTERNAL": 500}


class Anything:
    """Takes every call: a metric of the server."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.increment = self.inc = self.set = self.__init__

    COUNTER = GAUGE = None

    def Metric(self, labels: Any) -> Anything:
        return self


def add_module(name: str, **content: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


class TritonError(tuple):
    INVALID_ARG, UNAVAILABLE, INTERNAL = STATUS_OF_CODE

    def __new__(cls, *parts: Any) -> TritonError:
        return super().__new__(cls, parts)


class RayHost:
    def __init__(self, folder: Path) -> None:
        def deployment(cls: Any) -> Any:
            cls.bind = classmethod(lambda cls: cls)
            return cls

        serve = SimpleNamespace(deployment=deployment)
        add_module("ray", get_gpu_ids=list, serve=serve)
        add_module("ray.serve")
        add_module("ray.serve.metrics", Counter=Anything, Gauge=Anything)
        add_module("starlette")
        add_module("starlette.requests", Request=None)
        add_module("starlette.responses", Response=lambda *parts: parts)
        sys.path.insert(0, str(folder))  # PYTHONPATH=.
        import deployment as program  # type: ignore[import-not-found]

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._replica = program.Classifier()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        async def stream() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 1 << 20):
                yield body[start : start + (1 << 20)]
            yield b""

        asked = SimpleNamespace(method=method, scope={"path": path}, headers=headers, stream=stream)
        content, status, own = self._run(self._replica(asked))
        return status, own, content

    def check_health(self) -> str:
        """Returns why Ray would replace the replica."""
        try:
            self._run(self._replica.check_health())
        except RuntimeError as error:
            return str(error)
        return ""

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class TritonHost:
    def __init__(self, folder: Path) -> None:
        add_module(
            "triton_python_backend_utils",
            get_input_tensor_by_name=lambda request, _: request.image,
            InferenceResponse=lambda outputs=(), error=None: (outputs, error),
            Tensor=lambda name, values: (name, values),
            TritonError=TritonError,
            MetricFamily=Anything,
        )
        (version,) = folder.glob("*/1")
        sys.path.insert(0, str(version))  # as the backend's stub does
        import model  # type: ignore[import-not-found]

        config = json.dumps({"max_batch_size": 8})
        self._model = model.TritonPythonModel()
        self._model.initialize({"model_config": config, "model_instance_kind": "CPU"})

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        values = np.array([[body]], dtype=np.object_)
        asked = SimpleNamespace(
            image=SimpleNamespace(as_numpy=lambda: values),
            # Triton keeps the client's spelling.
            parameters=lambda: json.dumps({name.title(): one for name, one in headers.items()}),
            request_id=lambda: headers.get("x-request-id", ""),
        )
        ((outputs, error),) = self._model.execute([asked])
        if error is not None:
            return STATUS_OF_CODE[error[1]], {}, error[0].encode()
        return 200, {}, bytes(dict(outputs)["REPLY"][0][0])


def main(kind: str, folder: Path) -> None:
    host = {"ray": RayHost, "triton": TritonHost}[kind](folder)
    ids: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/health":
                status, own, content = 200, {}, host.check_health().encode()
            elif self.path == "/ids":
                status, own, content = 200, {}, json.dumps(ids).encode()
            else:
                status, own, content = host.answer(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in {**own, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    import offpath.handler
    import offpath.serving.service
    from offpath.handler.classifier import OffpathClassifier

    classify = OffpathClassifier.classify

    def note_ids(self: OffpathClassifier, requests: Any) -> Any:
        ids.extend(request.id for request in requests)
        return classify(self, requests)

    OffpathClassifier.classify = note_ids  # type: ignore[method-assign]

    said = {
        "port": server.server_port,
        "pid": os.getpid(),
        "service": offpath.serving.service.__file__,
        "handler": offpath.handler.__file__,
    }
    print(json.dumps(said), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    for line in sys.stdin:
        if os.fork() == 0:
            kind, folder = json.loads(line)
            main(kind, Path(folder))
