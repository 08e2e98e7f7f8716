"""`offpath demo` as a visitor uses it, in a real Chromium."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from offpath.commands import demo
from tests.guarantees import guarantee
from tests.support.eventually import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


@pytest.fixture(
    scope="module", params=["granian", pytest.param("torchserve", marks=pytest.mark.slow)]
)
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
def evaluate(url: str, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Shows the page in a headless Chromium; returns what evaluates a JavaScript expression in it.

    Protocol: https://chromedevtools.github.io/devtools-protocol/
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    # The protocol uses the descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{command_end} 4>&{answer_end}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *FLAGS, f"--user-data-dir={tmp_path}"],
        pass_fds=(command_end, answer_end),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(command_end)
    os.close(answer_end)
    numbers, session = itertools.count(1), dict[str, str]()

    def read_messages(rest: bytes = b"") -> Iterator[dict[str, Any]]:
        while piece := os.read(answers, 1 << 16):
            *messages, rest = (rest + piece).split(b"\0")
            yield from map(json.loads, messages)

    messages = read_messages()

    def call(method: str, **parameters: object) -> dict[str, Any]:
        number = next(numbers)
        message = {"id": number, "method": method, "params": parameters, **session}
        os.write(commands, json.dumps(message).encode() + b"\0")
        return next(one for one in messages if one.get("id") == number)["result"]

    target = call("Target.createTarget", url=url)["targetId"]
    session["sessionId"] = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def run(script: str) -> Any:
        answer = call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    try:
        eventually(lambda: run("document.title && document.readyState === 'complete'"))
        yield run
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(commands)
        os.close(answers)


@guarantee("Script or escapes in pages and names")
@pytest.mark.slow
@pytest.mark.server
def test_the_page_shows_an_image_and_200_requests_and_a_bad_image_is_explained(
    evaluate: Callable[[str], Any],
) -> None:
    evaluate("document.querySelector('#samples button').click()")
    eventually(lambda: evaluate("!document.getElementById('load').hidden"))
    evaluate("document.getElementById('send').click()")
    eventually(lambda: evaluate("document.querySelectorAll('#chart circle').length === 200"))
    name = "<img id=planted>.jpg"
    eventually(lambda: evaluate("!document.getElementById('send').disabled"))
    cut = f"blob => take([new File([blob.slice(0, 9000)], {name!r})])"
    evaluate(f"fetch('/demo/espresso.jpg').then(reply => reply.blob()).then({cut})")
    status = "document.getElementById('status').textContent"
    eventually(lambda: evaluate(f"{status}.startsWith('422 UndecodableImage: ')"))
    assert evaluate("document.getElementById('load').hidden")
    assert evaluate("document.getElementById('hint').textContent").startswith(name)
    assert evaluate("document.getElementById('planted')") is None


@guarantee("Script or escapes in pages and names")
@pytest.mark.server
def test_the_policy_stops_a_script_that_is_not_the_pages(url: str) -> None:
    """Any browser obeys the header, and the other test finds that the page itself needs no more."""
    answer = httpx.get(f"{url}demo/index.html", trust_env=False)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "http" not in policy
    beside = httpx.get(f"{url}demo/../nginx.conf", trust_env=False)
    assert (beside.status_code, beside.json()["type"]) == (404, "NotFound")
