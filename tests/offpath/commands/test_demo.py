"""`offpath demo` as a visitor uses it, in a real Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from offpath.archive.photographs import BUNDLED
from offpath.commands import demo
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.server.server_settings import ServerSettings
from tests.offpath.conftest import Run
from tests.support.echo_archive import write_mar
from tests.support.eventually import eventually
from tests.support.guarantees import guarantee

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
COUNT = "document.querySelectorAll('#chart circle').length"
STATUS = "document.getElementById('status').textContent"


class Browser:
    """One page of a headless Chromium, driven by the DevTools protocol over two pipes.

    Protocol: https://chromedevtools.github.io/devtools-protocol/
    """

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


@pytest.fixture(scope="module", params=["torchserve", "granian"])
def url(
    request: pytest.FixtureRequest, model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a running demo."""
    folder = tmp_path_factory.mktemp("demo")
    store = folder / demo.STORE
    store.mkdir(parents=True)
    shutil.copy(model_store / "classifier.mar", store)
    command = [sys.executable, "-m", "offpath", "demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--server", request.param],
        cwd=folder,
        env={**os.environ, "BROWSER": "true"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    try:
        (address,) = re.findall(r"READY after .* s: (http://127\.0\.0\.1:\d+/)$", ready)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        process.stdout.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with open_browser(program, tmp_path / "browser") as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "archive"),
    [
        pytest.param((), ".offpath/demo/classifier.mar", id="built-earlier"),
        pytest.param(("defects",), ".offpath/model-store/defects.mar", id="of-the-store"),
        pytest.param(("defects.mar",), "defects.mar", id="by-path"),
    ],
)
def test_an_archive_that_exists_is_shown_as_it_is(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    archive: str,
) -> None:
    served: list[tuple[ServerSettings, DoorSettings]] = []
    monkeypatch.setattr(
        demo, "Session", lambda make, view, hangup, door: served.append((make(None), door))
    )
    monkeypatch.setattr(demo, "serve", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    path = Path(archive)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.utime(write_mar(path.parent.resolve(), path.stem), (0, 0))
    done = run("demo", "--port", 0, *arguments)
    assert done.code == 0 and path.stat().st_mtime == 0, done.err
    ((settings, door),) = served
    assert settings.model_store.resolve() / settings.models[0] == path.resolve()
    assert settings.env == {"OFFPATH_PREDICTION_LOG": "off"} and door.invocations


@guarantee("Script or escapes in pages and names")
@pytest.mark.slow
@pytest.mark.server
def test_the_page_fits_a_phone_in_the_dark_and_a_bad_image_is_explained(
    url: str, browser: Browser, tmp_path: Path
) -> None:
    browser.open(url, 360, 800, is_dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert browser.evaluate(ground) == "rgb(13, 17, 23)"
    browser.evaluate("document.querySelector('#samples button').click()")
    browser.wait_for("!document.getElementById('load').hidden")
    browser.evaluate("document.getElementById('send').click()")
    browser.wait_for(f"{COUNT} === 200")
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    (bad := tmp_path / "<img id=planted>.jpg").write_bytes(
        (BUNDLED / "espresso.jpg").read_bytes()[:9000]
    )
    browser.drop_file(bad, "#drop")
    browser.wait_for(f"{STATUS}.startsWith('422 UndecodableImage: ')")
    assert browser.evaluate("document.getElementById('load').hidden")
    assert browser.evaluate("document.getElementById('hint').textContent").startswith(bad.name)
    assert browser.evaluate("document.getElementById('planted')") is None


@guarantee("Script or escapes in pages and names")
@pytest.mark.slow
@pytest.mark.server
def test_the_policy_stops_a_script_that_is_not_the_pages(url: str) -> None:
    """Any browser obeys the header, and the other test finds that the page itself needs no more."""
    answer = httpx.get(f"{url}demo/index.html", trust_env=False)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "http" not in policy
    beside = httpx.get(f"{url}demo/../nginx.conf", trust_env=False)
    assert (beside.status_code, beside.json()["type"]) == (404, "NotFound")
