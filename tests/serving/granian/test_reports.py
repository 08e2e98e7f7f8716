from __future__ import annotations

import json
import re
import socket

from offpath.handler.serving_settings import ServingSettings
from offpath.serving.granian.reports import SILENT_S, Reports
from offpath.serving.server.served_model import ServedModel
from tests.support.clock import Clock
from tests.support.eventually import eventually


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
