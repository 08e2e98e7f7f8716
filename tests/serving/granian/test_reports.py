from __future__ import annotations

import json
import re
import socket

from offpath.handler.serving_settings import ServingSettings
from offpath.serving.granian.reports import SILENT_S, Reports
from offpath.serving.server.served_model import ServedModel
from tests.support.clock import Clock
from tests.support.eventually import eventually


def test_a_model_without_ready_workers_is_counted_beside_a_healthy_one() -> None:
    models = [
        ServedModel("well", "1.0", "", ServingSettings(), 0, True),
        ServedModel("dead", "2.0", "", ServingSettings(max_workers=2), 1, True),
    ]
    reports = Reports(models, "host")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports.follow(ours)
    with theirs:
        for slot, report in (
            (0, {"ready": {}}),
            (1, {"failed": "no weights"}),
            (1, {"ended": "with exit status 1"}),
            (2, {"ready": {}}),
            (2, {"ended": "by SIGKILL"}),
            (1, {"ended": "with exit status 1"}),
        ):
            theirs.send(json.dumps({"slot": slot, "pid": 7, **report}).encode())

    def read() -> set[str]:
        page = reports.format_metrics().replace(',Hostname="host",', "")
        return set(re.findall("offpath_worker.*", page))

    expected = {
        'offpath_workers_ready{model="well",version="1.0"} 1',
        'offpath_workers_wanted{model="well",version="1.0"} 1',
        'offpath_workers_ready{model="dead",version="2.0"} 0',
        'offpath_workers_wanted{model="dead",version="2.0"} 2',
        'offpath_worker_ends_total{model="dead",version="2.0",how="with exit status 1"} 2',
        'offpath_worker_ends_total{model="dead",version="2.0",how="by SIGKILL"} 1',
    }
    eventually(lambda: read() == expected)


def test_a_worker_that_reports_nothing_for_long_is_not_ready() -> None:
    clock = Clock()
    model = ServedModel("quiet", "1.0", "", ServingSettings(), 0, True)
    reports = Reports([model], "host", clock)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports.follow(ours)

    def read() -> tuple[str, str]:
        (worker,) = reports.describe("quiet", "1.0")[0]["workers"] or [{"status": ""}]
        return worker["status"], re.findall("workers_ready.* (.*)", reports.format_metrics())[0]

    with theirs:
        theirs.send(json.dumps({"slot": 0, "pid": 7, "ready": {}}).encode())
        eventually(lambda: read() == ("READY", "1"))
        clock.pass_s(SILENT_S + 1)
        assert read() == ("SILENT", "0")
        theirs.send(json.dumps({"slot": 0, "pid": 7, "series": []}).encode())
        eventually(lambda: read() == ("READY", "1"))
