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
    batch_size = options.get("batch_size", 4)
    for batch in itertools.count():
        records = [
            Record(uuid.uuid4().hex, format_inference_time(), "m", "1.0", user_id="u" * 40)
            for _ in range(batch_size)
        ]
        log.append(records)
        ids = "".join(f"{record.event_id}\n" for record in records)
        os.write(1, ids.encode())
        if batch + 1 == options.get("batches"):
            break
        time.sleep(options.get("pause_s", 0.002))
    if options.get("forks"):
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), 9)
    log.close()


main()
