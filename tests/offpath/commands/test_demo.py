"""`offpath demo` as a visitor uses it, in a real Chromium."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from offpath.archive.photographs import BUNDLED
from offpath.commands import demo
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.server.server_settings import ServerSettings
from tests.offpath.conftest import Run
from tests.support.browser import Browser, find_browser, open_browser
from tests.support.echo_archive import write_mar
from tests.support.guarantees import guarantee

COUNT = "document.querySelectorAll('#chart circle').length"
STATUS = "document.getElementById('status').textContent"


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
    program = find_browser()
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
        demo, "DoorSession", lambda make, door, *_: served.append((make(None), door))
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
