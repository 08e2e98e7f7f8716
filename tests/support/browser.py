"""A headless Chromium, driven by the DevTools protocol over two pipes.

Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


class Browser:
    """One page of a running browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._number = b"", 0
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Runs one command of the protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | self._session).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._answers, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def evaluate(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, after its promise."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Waits until an expression is true, and returns its value."""
        return eventually(lambda: self.evaluate(script))

    def open(self, url: str, width: int, height: int, is_dark: bool = False) -> None:
        """Loads a page in a window of a size in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        is_phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", mobile=is_phone, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else ""}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {url!r} && document.readyState === 'complete'")

    def drop_file(self, path: Path, selector: str) -> None:
        """Drags a file onto the middle of an element and drops it there."""
        box = self.evaluate(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            where = {"x": box[0], "y": box[1], "data": data}
            self.call("Input.dispatchDragEvent", type=kind, **where)


def find_browser() -> str | None:
    """Returns the path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def open_browser(program: str, folder: Path) -> Iterator[Browser]:
    """Runs a browser with an empty profile in `folder`, and kills it at the end."""
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    # The protocol uses the descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{command_end} 4>&{answer_end}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(command_end, answer_end),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(command_end)
    os.close(answer_end)
    try:
        yield Browser(commands, answers)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        os.close(commands)
        os.close(answers)
