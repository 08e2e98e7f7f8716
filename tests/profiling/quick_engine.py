"""The process of an engine that starts in a moment and takes 10 ms a batch."""

from __future__ import annotations

import time

from offpath.profiling.core.child_process import obey

PARITY = {"all.largest_move": 0.01, "all.top1_changes": 0, "all.pictures": 4}


class QuickEngine:
    def load(self, order):
        if order["engine"] == "broken":
            raise ValueError("no such graph")
        return {"load_s": 0.01}

    def check(self, order):
        return PARITY

    def warm_up(self, order):
        return {}

    def forward(self, order):
        time.sleep(max(0.0, order["begin_s"] - time.monotonic()) + order["seconds"])
        seconds = order["seconds"]
        return {"images": 1, "elapsed_s": seconds, "cpu_s": seconds / 2}

    def explain(self, error):
        return {"error": str(error), "traceback": ""}


if __name__ == "__main__":
    obey(QuickEngine())
