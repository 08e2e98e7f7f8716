"""A real Prometheus that scrapes a server every second, and queries to its API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from offpath.profiling.servers.server_process import is_ok, start_process
from offpath.serving.process.ports import resolve_ports
from tests.support.eventually import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Returns the `data` of an API answer."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def wait_until(self, expression: str) -> None:
        """Waits until the expression holds for some series."""
        eventually(lambda: self.ask("query", query=expression)["result"])


@contextmanager
def run_prometheus(folder: Path, metrics_url: str, hold: str = "") -> Iterator[Prometheus]:
    """Runs Prometheus with our configuration of deploy/ on this server, scraping every second.

    Rules that hold an alert back for one or two minutes do so for `hold`, such as `10s`.
    """
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    target = metrics_url.removeprefix("http://")
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (folder / "prometheus.yml").write_text(json.dumps(config))
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    rules = re.sub("for: [12]m$", f"for: {hold}", rules, flags=re.M) if hold else rules
    (folder / "alerts.yml").write_text(rules)
    (port,) = resolve_ports("127.0.0.1", [0])
    url = f"http://127.0.0.1:{port}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    log = folder / "prometheus.log"
    with start_process("prometheus", command, log, is_ok(f"{url}/-/ready")):
        yield Prometheus(url)
