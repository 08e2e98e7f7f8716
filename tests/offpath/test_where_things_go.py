"""docs/where-things-go.md is right: its files and names exist, and its recipes work as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiling.runs import make_compare
from tests.support.images import jpeg

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "where-things-go.md").read_text("utf-8")
FOLDERS = ("handler", "archive", "serving", "deploy", "profiling", "offpath")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w./-]+/[\w./-]*)`", PAGE))))
def test_every_path_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("name", "path"),
    sorted(set(re.findall(r"`(\w+)` (?:in|of)\s+`([\w./-]+\.py)`", PAGE))),
)
def test_every_name_on_the_page_is_in_its_file(name: str, path: str) -> None:
    pattern = rf"^ *(async )?(def|class) {name}\b|^{name}\b.*="
    assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)


class Copy:
    """A copy of the repository in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__", "results", "research")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)

    def append(self, path: str, code: str) -> None:
        with (self.folder / path).open("a", encoding="utf-8") as file:
            file.write(code)

    def insert_after(self, path: str, line: str, code: str) -> None:
        """Inserts code after the only line that begins so."""
        lines = (self.folder / path).read_text("utf-8").splitlines(keepends=True)
        (at,) = [n for n, text in enumerate(lines) if text.startswith(line)]
        lines.insert(at + 1, code)
        (self.folder / path).write_text("".join(lines), "utf-8")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


SINK = '''

class NullSink:
    """Forgets every object."""

    async def prepare(self) -> None:
        pass

    async def put(self, key: str, body: bytes, compression: str) -> None:
        print("put", len(body) > 0)

    async def close(self) -> None:
        pass
'''
USE_SINK = """
import sys
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
mapping = {"uri": "null://x", "spool_dir": sys.argv[1]}
log = open_prediction_log(PredictionLogSettings.from_mapping(mapping, {}), model="m", version="1")
log.append([Record("a", "2026-11-22T00:00:00Z", "m", "1")])
log.close()
print("shipped", log.counters().shipped)
"""


def test_a_new_sink_receives_records(copy: Copy) -> None:
    sinks = "handler/prediction_log/sinks.py"
    copy.append(sinks, SINK)
    copy.insert_after(
        sinks,
        '    """Returns the sink for',
        '    if settings.uri.startswith("null://"):\n        return NullSink()\n',
    )
    copy.insert_after(
        "handler/prediction_log/log_settings.py",
        "    parts = urlsplit(value)",
        '    if parts.scheme == "null":\n        return value\n',
    )
    out = copy.run("-c", USE_SINK, str(copy.folder / "spool"))
    assert out.split("\n")[:2] == ["put True", "shipped 1"]


ENGINE = '''
from offpath.handler.model.engines.eager import EagerEngine


class TwinEngine(EagerEngine):
    """Runs the model as the eager engine does."""

    name = "twin"
'''
USE_ENGINE = """
import torch
from offpath.handler.config import HandlerConfig
from offpath.handler.model.engines.choose import choose_engine
config = HandlerConfig.from_mapping({"image_size": 16, "resize_size": 16, "engine": "twin",
                                     "precision": "fp32"})
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 2)).eval()
choice = choose_engine(model, config, torch.device("cpu"), None, 1)
print(choice.engine.name, tuple(choice.engine(torch.zeros(3, 16, 16, 3, dtype=torch.uint8)).shape))
"""


def test_a_new_engine_runs_the_model(copy: Copy) -> None:
    engines = "handler/model/engines"
    (copy.folder / engines / "twin.py").write_text(ENGINE)
    copy.insert_after(f"{engines}/engine.py", "PRECISIONS", '    "twin": ("fp32",),\n')
    copy.insert_after(
        f"{engines}/choose.py",
        "from offpath.handler.model.engines.eager import",
        "from offpath.handler.model.engines.twin import TwinEngine\n",
    )
    copy.insert_after(
        f"{engines}/choose.py",
        '    if name == "eager":',
        "        pass\n"
        '    if name == "twin":\n'
        "        return TwinEngine(model, config, device, precision)\n"
        '    if name == "eager":\n',
    )
    assert copy.run("-c", USE_ENGINE) == "twin (3, 2)\n"


def test_a_new_chart_is_on_the_page(copy: Copy) -> None:
    copy.insert_after(
        "profiling/experiments/compare_report.py",
        '        Section("latency"',
        '        Section("mine", charts=draw_bars(view, "rate", "A chart of my own", "1/s")),\n',
    )
    make_compare().save(copy.folder / "result.json")
    copy.run("-m", "offpath", "bench", "show", "result.json", "--html", "page.html")
    assert "A chart of my own" in (copy.folder / "page.html").read_text("utf-8")


SERVER = '''
"""A server made with Python's standard library."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from offpath.profiling.servers.adapter import PackagedAdapter, Start
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.adapter import ServiceSettings, is_service


class Plain(PackagedAdapter):
    """One process that answers one request at a time per thread."""

    name = "plain"
    environment = Environment("plain", (), size_mb=0)
    predict_path = ready_path = "/"
    worker_mark = "plain"

    def why_not(self) -> None:
        return None

    def find_python(self) -> Path:
        return Path(sys.executable)

    def make_command(self, start: Start) -> list[str]:
        return start.run_module(__name__)

    def make_environment(self, start: Start) -> dict[str, str]:
        # A server's own environment would have the package installed.
        return {**super().make_environment(start), "PYTHONPATH": os.getcwd()}


if is_service():
    SETTINGS = ServiceSettings.from_environment()
    classify = SETTINGS.load_classifier()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(classify([body])[0])

        def reply(self, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", SETTINGS.port), Handler).serve_forever()
'''


@pytest.mark.slow
def test_a_new_server_is_in_the_comparison(copy: Copy) -> None:
    (copy.folder / "profiling/servers/plain.py").write_text(SERVER.lstrip())
    registry = "profiling/servers/registry.py"
    copy.insert_after(
        registry,
        "from offpath.profiling.servers.overrides",
        "from offpath.profiling.servers.plain import Plain\n",
    )
    copy.insert_after(registry, "SERVERS", '    "plain": Plain,\n')
    (copy.folder / "images").mkdir()
    (copy.folder / "images" / "a.jpg").write_bytes(jpeg(size=(320, 240)))
    options = "--model near-free --workload images --clients 1 --seconds 1 --warm-up 0 --rounds 1"
    shown = copy.run("-m", "offpath", "bench", "compare", "--servers", "plain", *options.split())
    # A server with wrong answers would be left out, with exit code 1.
    assert re.search(r"^ +plain +[\d.,]+ ", shown, re.MULTILINE)
