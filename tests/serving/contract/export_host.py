"""Stands in for the processes in which Ray or Triton runs exports, which are asked over HTTP.

It imports torch once. For each line of standard input, such as ["ray", "FOLDER"], a fork serves the
export in the folder, and prints its process id and port.

`GET /health` runs the check by which Ray would replace the replica. Ray's requests and responses
are passed on as they are. For Triton a body is a BYTES tensor, and the reply is the tensor REPLY,
or the error with the status that Triton gives to its code.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch  # noqa: F401

Answer = tuple[int, dict[str, str], bytes]


def add_modules(*names: str, **content: Any) -> MagicMock:
    """Lets modules of the host be imported; all calls but those of `content` have no effect."""
    module = MagicMock(**content)
    sys.modules.update(dict.fromkeys(names, module))
    return module


class RayHost:
    def __init__(self, folder: Path) -> None:
        add_modules("starlette.requests", "starlette.responses", Response=lambda *parts: parts)
        ray = add_modules("ray", "ray.serve.metrics", get_gpu_ids=list)
        sys.path.insert(0, str(folder))  # PYTHONPATH=.
        import deployment  # type: ignore[import-not-found]  # noqa: F401

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        (classifier,) = ray.serve.deployment.call_args.args
        self._replica = classifier()

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
        # The codes of errors are their statuses.
        codes = {"INVALID_ARG": 400, "UNAVAILABLE": 503, "INTERNAL": 500}
        add_modules(
            "triton_python_backend_utils",
            get_input_tensor_by_name=lambda request, _: request.image,
            InferenceResponse=lambda outputs=(), error=None: (dict(outputs), error),
            Tensor=lambda name, values: (name, values),
            TritonError=MagicMock(side_effect=lambda *parts: parts, **codes),
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
            message, status = error
            return status, {}, message.encode()
        return 200, {}, bytes(outputs["REPLY"][0][0])


def main(kind: str, folder: Path) -> None:
    host = {"ray": RayHost, "triton": TritonHost}[kind](folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path == "/health":
                status, own, content = 200, {}, host.check_health().encode()
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

    # Not of this checkout, which the environment has installed.
    for module in (offpath.handler, offpath.serving.service):
        assert Path(str(module.__file__)).is_relative_to(folder), module
    assert "archive" in Path(offpath.handler.__file__).parts
    print(json.dumps([os.getpid(), server.server_port]), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    for line in sys.stdin:
        if os.fork() == 0:
            kind, folder = json.loads(line)
            main(kind, Path(folder))
