"""Appends records as a worker does, and prints each event id once its append has returned."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import uuid

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.prediction_log import open_prediction_log
from offpath.handler.prediction_log.record import Record, format_inference_time


def main() -> None:
    mapping, options = (json.loads(argument) for argument in sys.argv[1:])
    settings = PredictionLogSettings.from_mapping(mapping, {})
    log = open_prediction_log(settings, model="m", version="1.0")
    for batch in itertools.count():
        count = options.get("batch_size", 4)
        ids = options.get("names") or [uuid.uuid4().hex for _ in range(count)]
        log.append([Record(one, format_inference_time(), "m", "1.0", "u" * 40) for one in ids])
        os.write(1, "".join(f"{one}\n" for one in ids).encode())
        if "names" in options:
            # It ships nothing from now on.
            os.kill(os.getpid(), signal.SIGSTOP)
        if batch + 1 == options.get("batches"):
            break
        time.sleep(options.get("pause_s", 0.002))
    if options.get("forks"):
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), 9)
    log.close()


main()
